"""A user of libgit2: `clone|fetch|push <folder> <address> [refspec ...]`; credentials in CLIENT_USER, CLIENT_PASSWORD, CLIENT_KEY."""
import os
import sys

import pygit2


class Callbacks(pygit2.RemoteCallbacks):
    refused = False

    def credentials(self, url, username, allowed):
        key = os.environ.get("CLIENT_KEY")
        if allowed & pygit2.GIT_CREDENTIAL_SSH_KEY and key:
            return pygit2.Keypair(username or "git", f"{key}.pub", key, "")
        if allowed & pygit2.GIT_CREDENTIAL_USERPASS_PLAINTEXT and "CLIENT_PASSWORD" in os.environ:
            return pygit2.UserPass(os.environ["CLIENT_USER"], os.environ["CLIENT_PASSWORD"])
        raise pygit2.GitError("no credentials for this server")

    def sideband_progress(self, text):
        sys.stderr.write(text)

    def push_update_reference(self, name, message):
        if message:
            self.refused = True
            print(f"{name}: {message}", file=sys.stderr)


verb, folder, url, *specs = sys.argv[1:]
callbacks = Callbacks()
try:
    if verb == "clone":
        pygit2.clone_repository(url, folder, callbacks=callbacks)
    else:
        remote = pygit2.Repository(folder).remotes["origin"]
        if verb == "fetch":
            remote.fetch(callbacks=callbacks)
        else:
            remote.push(specs, callbacks=callbacks)
except pygit2.GitError as error:
    sys.exit(f"libgit2: {error}")
sys.exit(1 if callbacks.refused else 0)
