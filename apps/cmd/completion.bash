# Completion of butler's commands, flags and policies for bash. What there is to complete is read from `butler --help`, so that
# it is always that of the command in use.
_butler()
{
    local program=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | sed -n 's/^  \([a-z]\{2,\}\)  .*/\1/p') --help --version" -- "$word")
    elif [ "$before" = --kv ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" policies --json 2>/dev/null | sed 's/^{"policy": *"\([a-z0-9_]*\)".*/\1/')" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" "${COMP_WORDS[1]}" --help 2>/dev/null |
            sed -n 's/^  \(-[a-z], \)\{0,1\}\(-[-a-z]*\)[ [].*/\1\2/p' | tr -d ,)" -- "$word")
    fi
}
complete -o default -F _butler butler
