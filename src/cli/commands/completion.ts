/**
 * `loam completion` prints scripts for shells. They ask the hidden command `complete` at each Tab, so that they never fall
 * behind the commands. The scripts need nothing but the shell itself.
 */
import {
  Argument,
  type Command,
  type Option,
  type OptionValues,
} from '@commander-js/extra-typings';
import type { Program } from '../command.ts';
import { print, safeText } from '../terminal.ts';
import { readValues, type ValueKind } from './completion-values.ts';

const SCRIPTS = {
  bash: `_loam() {
  local IFS=$' \\t\\n' line="\${COMP_LINE:0:COMP_POINT}" word prefix reply
  local -a words
  read -ra words <<< "$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  word="\${words[\${#words[@]}-1]}"
  # Bash splits words at colons and equals signs, and replaces the last part only.
  prefix="\${word%"\${word##*[:=]}"}"
  COMPREPLY=()
  while IFS= read -r reply; do
    reply="\${reply%%$'\\t'*}"
    COMPREPLY+=("\${reply#"$prefix"}")
  done < <("$1" complete -- "\${words[@]:1}" 2>/dev/null)
}
complete -o default -F _loam loam`,
  zsh: `#compdef loam
_loam() {
  local -a replies
  local reply
  while IFS= read -r reply; do
    replies+=("\${\${reply//:/\\\\:}/$'\\t'/:}")
  done < <("$words[1]" complete -- "\${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
  if (( $#replies )); then _describe loam replies; else _files; fi
}
if [[ $funcstack[1] == _loam ]]; then _loam "$@"; else compdef _loam loam; fi`,
  fish: `function __loam_complete
    set -l words (commandline -opc)
    set -l program $words[1]
    set -e words[1]
    set -g __loam_replies ($program complete -- $words (commandline -ct) 2>/dev/null)
    test (count $__loam_replies) -gt 0
end
complete -c loam -f -n __loam_complete -a '$__loam_replies'`,
} as const;
const SHELLS = Object.keys(SCRIPTS) as (keyof typeof SCRIPTS)[];

/** Call it after all other commands: it reads them. */
export function addCompletionCommand(program: Program): void {
  program
    .command('completion')
    .description('Print a script that completes commands, options, jobs, repositories and runs')
    .addArgument(new Argument('<shell>', 'your shell').choices(SHELLS))
    .addHelpText(
      'after',
      `
bash: add to ~/.bashrc             source <(loam completion bash)
zsh:  add to ~/.zshrc, after compinit   source <(loam completion zsh)
fish: run once                     loam completion fish > ~/.config/fish/completions/loam.fish`,
    )
    .action((shell) => print(SCRIPTS[shell]));

  program
    .command('complete', { hidden: true })
    .description('Print what the last word can be, for scripts of shells')
    .argument('[words...]', 'the words after "loam"; the last one is the one to complete')
    .action(async (words) => {
      for (const { value, description } of await suggest(program, words))
        print([value, ...(description ? [description] : [])].map(safeText).join('\t'));
    });
}

type Suggestion = { value: string; description?: string };
type AnyCommand = Command<unknown[], OptionValues, OptionValues>;

/** @returns what begins with the last word */
async function suggest(program: Program, words: readonly string[]): Promise<Suggestion[]> {
  const word = words.at(-1) ?? '';
  const place = findPlace(program as unknown as AnyCommand, words.slice(0, -1));
  const [flag, given] = /^(--[\w-]+)=(.*)$/s.exec(word)?.slice(1) ?? [];
  const option = place.option ?? (flag === undefined ? null : findOption(place, flag));
  const prefix = place.option === null && flag !== undefined ? `${flag}=` : '';
  const begun = prefix === '' ? word : (given ?? '');
  if (option !== null) {
    const values = await valuesOf(program, place, option, begun);
    return startingWith(values, begun).map(({ value, ...more }) => ({
      ...more,
      value: prefix + value,
    }));
  }
  if (place.isAfterDashes) return [];
  if (word.startsWith('-'))
    return startingWith(
      optionsOf(place).flatMap(({ long, description }) =>
        long ? { value: long, description: firstSentence(description) } : [],
      ),
      word,
    );
  const argument =
    place.command.registeredArguments[place.position] ??
    place.command.registeredArguments.findLast(({ variadic }) => variadic);
  const commands = place.position === 0 ? visibleCommands(place.command) : [];
  const values = argument ? await valuesOf(program, place, argument, word) : [];
  return startingWith([...commands, ...values], word);
}

type Place = {
  command: AnyCommand;
  /** The commands around it, the program first. */
  parents: readonly AnyCommand[];
  /** The index of the next argument. */
  position: number;
  /** The option whose value comes next. */
  option: Option | null;
  isAfterDashes: boolean;
};

/** Follows the words to the command, the option or the argument that comes next. */
function findPlace(program: AnyCommand, words: readonly string[]): Place {
  const place: Place = {
    command: program,
    parents: [],
    position: 0,
    option: null,
    isAfterDashes: false,
  };
  for (const word of words) {
    if (place.isAfterDashes || place.option !== null) place.option = null;
    else if (word === '--') place.isAfterDashes = true;
    else if (word.startsWith('-')) {
      const option = findOption(place, word);
      place.option = option?.required ? option : null;
    } else {
      const next = place.command.commands.find(
        (one) => one.name() === word || one.aliases().includes(word),
      );
      if (next && place.position === 0) {
        place.parents = [...place.parents, place.command];
        place.command = next as AnyCommand;
      } else place.position++;
    }
  }
  return place;
}

function optionsOf({ command, parents }: Place): Option[] {
  return [command, ...parents].flatMap((one) => [...one.options]).filter(({ hidden }) => !hidden);
}

function findOption(place: Place, flag: string): Option | null {
  return optionsOf(place).find(({ long, short }) => long === flag || short === flag) ?? null;
}

function visibleCommands(command: AnyCommand): Suggestion[] {
  return command
    .createHelp()
    .visibleCommands(command as never)
    .map((one) => ({ value: one.name(), description: firstSentence(one.description()) }));
}

/** The kinds of the values of arguments by their names, and of options. */
const ARGUMENT_KINDS: Readonly<Record<string, ValueKind>> = {
  job: 'job',
  repository: 'repository',
  number: 'run',
  namespace: 'namespace',
  machine: 'machine',
};
const OPTION_KINDS: Readonly<Record<string, ValueKind>> = {
  '--repo': 'repository',
  '--after': 'job',
  '--input': 'job',
  '--namespace': 'namespace',
  '--status': 'status',
  '--gpu': 'gpu',
  '--region': 'region',
};

async function valuesOf(
  program: Program,
  { command, parents }: Place,
  of: Option | { name(): string; argChoices?: readonly string[] },
  word: string,
): Promise<Suggestion[]> {
  if (of.argChoices) return of.argChoices.map((value) => ({ value }));
  const isOption = 'flags' in of;
  const kind = isOption ? OPTION_KINDS[of.long ?? ''] : ARGUMENT_KINDS[of.name()];
  const isJobOfFile = command.name() === 'start' && parents.length > 1;
  if (kind === undefined || isJobOfFile) return [];
  return (await readValues(program, kind, word)).map((value) => ({ value }));
}

function startingWith(suggestions: readonly Suggestion[], word: string): Suggestion[] {
  return suggestions.filter(({ value }) => value.startsWith(word));
}

function firstSentence(text: string): string {
  return text.split(/(?<=\.)\s|\n/, 1)[0] ?? '';
}
