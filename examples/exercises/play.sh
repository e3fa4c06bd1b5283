#!/usr/bin/env bash
# Plays the exercises of docs/human-in-the-loop.md, with all that is typed and answered, on a host of its own in a new folder.
# It ends with 0 if everything went as the page says.
#
#   go build ./cmd/pawl && examples/exercises/play.sh ./pawl
set -euo pipefail
pawl=$(realpath "$(command -v "${1:-pawl}")")
dir=$(mktemp -d)
cp "$(dirname "$0")/garden.yaml" "$dir"
cd "$dir"
host=

finish() {
  [ -z "$host" ] || kill "$host" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap finish EXIT

fail() {
  printf '\nplay.sh: %s\n' "$*" >&2
  exit 1
}

# start starts the host, or starts it again on the same address.
start() {
  "$pawl" serve --dev --data data --listen "${listen:-127.0.0.1:0}" >out 2>log &
  host=$!
  for _ in $(seq 600); do
    listen=$(sed -n 's|.*http://\([0-9.:]*\);.*|\1|p' out)
    [ -z "$listen" ] || break
    kill -0 "$host" 2>/dev/null || fail "the host did not start: $(cat log)"
    sleep 0.1
  done
  export PAWL_URL=http://$listen
}

key() { sed -n "s/.*\"$1\": \"\(.*\)\".*/\1/p" data/dev-keys.json; }

# as WHO EXITCODE ARG… shows a command as WHO types it, and what comes of it; anything but this exit code ends the play.
as() {
  local who=$1 want=$2 got=0 arg
  shift 2
  printf '\n%s$ pawl' "$who"
  for arg; do
    case $arg in
    *[!a-zA-Z0-9_./=@-]*) printf " '%s'" "$arg" ;;
    *) printf ' %s' "$arg" ;;
    esac
  done
  echo
  PAWL_KEY=$(key "$who") "$pawl" "$@" >said 2>&1 || got=$?
  sed 's/^/    /' said
  [ "$got" = 0 ] || echo "    (exit code $got)"
  [ "$got" = "$want" ] || fail "that should have ended with exit code $want"
}

# approval TOOL_CALL_ID finds what waits for a decision about that call.
approval() {
  PAWL_KEY=$(key admin) "$pawl" approvals list --json | sed -n "s/.*\"id\":\"\(apr_[^\"]*\)\".*\"tool_call_id\":\"$1\".*/\1/p"
}

# decisions writes decisions.json, and shows it.
decisions() {
  printf '\ndecisions.json:\n'
  tee decisions.json | sed 's/^/    /'
}

part() { printf '\n== %s\n' "$*"; }

start

part '1. Two calls stop. Nothing of the batch runs.'
as owner 0 agents save garden garden.yaml
as member 6 run garden
run=$(sed -n 's/^run \(run_[^ ]*\)$/\1/p' said)
beans=$(approval beans) tone=$(approval tone)

part '2. Who started it sees what waits, and does not decide it. Another member sees nothing.'
as member 0 approvals list
as member 4 approvals approve "$run"
as member2 0 approvals list
as member2 3 approvals approve "$run"

part '3. One is approved, the other edited: both in one request, or nothing.'
as admin 5 approvals approve "$beans"
decisions <<END
[{"approval_id": "$beans", "kind": "approve"},
 {"approval_id": "$tone", "kind": "edit", "arguments": {"path": "/etc/tone.md", "content": "Be kind."}}]
END
as admin 2 approvals decide "$run" @decisions.json
decisions <<END
[{"approval_id": "$beans", "kind": "approve"},
 {"approval_id": "$tone", "kind": "edit", "arguments": {"path": "/memories/tone.md", "content": "Be kind."}}]
END
as admin 0 approvals decide "$run" @decisions.json
as admin 5 approvals reject "$tone"

part '4. The next call stops. The host is killed; what waits, waits.'
as member 6 run --attach "$run"
{ kill -9 "$host" && wait "$host"; } 2>/dev/null || true
start
as admin 0 approvals list

part '5. It is rejected, and the run recovers.'
as admin 0 approvals reject "$run" --message 'beans were agreed'
as member 6 run --attach "$run"

part '6. A question of the model: who started the run answers it, in the shape that was asked for.'
as member 2 approvals approve "$run"
as member 2 approvals respond "$run" --value '"May"'
as member 2 approvals respond "$run" --value 13
as member 0 approvals respond "$run" --value 5
as member 0 run --attach "$run"

part '7. What the model was told, and who did what.'
as member 0 runs show "$run" --trajectory
as admin 0 audit
as admin 0 audit verify
