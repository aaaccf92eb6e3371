"""
A user of dulwich: `clone|fetch|push <folder> <address> [refspec ...]`, `clone --depth=<n> ...`; credentials in CLIENT_USER, CLIENT_PASSWORD,
CLIENT_KEY. With CLIENT_SSH=paramiko that library speaks SSH, else the program of GIT_SSH_COMMAND.
"""
import os
import sys

import dulwich.client
from dulwich import porcelain

verb, *words = sys.argv[1:]
depth = int(words.pop(0).split("=")[1]) if words[0].startswith("--depth=") else None
folder, url, *specs = words
more = {}
if "CLIENT_PASSWORD" in os.environ:
    more = {"username": os.environ["CLIENT_USER"], "password": os.environ["CLIENT_PASSWORD"]}
if os.environ.get("CLIENT_SSH") == "paramiko":
    import paramiko
    from dulwich.contrib.paramiko_vendor import ParamikoSSHVendor

    key = paramiko.ECDSAKey.from_private_key_file(os.environ["CLIENT_KEY"])
    dulwich.client.get_ssh_vendor = lambda: ParamikoSSHVendor(pkey=key, look_for_keys=False, allow_agent=False)
said = sys.stderr.buffer
try:
    if verb == "clone":
        porcelain.clone(url, folder, errstream=said, depth=depth, **more)
    elif verb == "fetch":
        porcelain.fetch(folder, "origin", errstream=said, outstream=sys.stdout, **more)
    else:
        porcelain.push(folder, "origin", specs, outstream=said, errstream=said, **more)
except Exception as error:
    sys.exit(f"dulwich: {type(error).__name__}: {error}")
