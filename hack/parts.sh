#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs targets of the Makefile one after the other, each with its output in out/parts/NAME.log too, and
# ends with what each took, in seconds (out/parts/seconds), or with the one that failed and its tests.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p out/parts
: >out/parts/seconds
for part in "$@"; do
	started=$(date +%s)
	${MAKE:-make} --no-print-directory "$part" 2>&1 | tee "out/parts/$part.log"
	failed=${PIPESTATUS[0]}
	echo "$part $(($(date +%s) - started))" >>out/parts/seconds
	if [ "$failed" != 0 ]; then
		echo "make test: failed in: $part"
		grep -hE '^ *--- FAIL|^(FAIL|panic:|error:)|^make.*Error' "out/parts/$part.log" | sort -u | tail -40 | sed 's/^/  /'
		echo "  its output: out/parts/$part.log"
		exit 1
	fi
done
echo "make test: all parts passed:"
awk '{printf "  %-16s %5d s\n", $1, $2; all += $2} END {printf "  %-16s %5d s\n", "all", all}' out/parts/seconds
