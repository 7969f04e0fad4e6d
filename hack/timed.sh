#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# hack/timed.sh NAME TARGET …: runs targets of the Makefile one after the other until one fails, and
# ends with what each took: wall-clock, CPU time of what it ran and waited for, and of the whole
# machine meanwhile, which has the nodes of labs too, and whatever else is going on.
set -uo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
TIMEFORMAT='%R %U %S'
failed=0
table=

# busy: seconds of CPU time that were not idle since the machine started.
busy() { awk -v hz="$(getconf CLK_TCK)" '/^cpu / {print ($2+$3+$4+$7+$8)/hz; exit}' /proc/stat; }

exec 3>&1 4>&2
for target in "$@"; do
	before=$(busy)
	took=$({ time "${MAKE:-make}" --no-print-directory "$target" >&3 2>&4; } 2>&1)
	failed=$?
	table+="$target $took $before $(busy)"$'\n'
	[ "$failed" = 0 ] || break
done
[ "$failed" = 0 ] || echo "make $name: failed in: $target" >&2
echo "make $name took, in seconds:"
printf '  %-14s %8s %8s %8s\n' '' wall CPU machine
printf '%s' "$table" | awk '
	function line(name, wall, cpu, machine) { printf "  %-14s %8.0f %8.0f %8.0f\n", name, wall, cpu, machine }
	{ line($1, $2, $3+$4, $6-$5); wall += $2; cpu += $3+$4; machine += $6-$5 }
	END { line("all", wall, cpu, machine) }'
exit "$failed"
