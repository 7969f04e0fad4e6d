// SPDX-License-Identifier: Apache-2.0

package source

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"
)

// Agents that no fan-out can feed read the API server by themselves in turns, so that it is not
// asked by all of them. Whose turn it is follows from the time and from the names of the nodes: the
// agents need nobody to tell them, which might be what is away, and a node that somebody has taken
// over keeps no other one from its turn. As far as the nodes' clocks agree, and what they know of
// which Nodes there are, one in turns reads at a time, and each reads once in turns*turn.
const (
	turns = 20
	turn  = 3 * time.Minute
	// turnBegins is within what time of a turn agents begin to read, so that those whose turn it is
	// do not begin together; later ones wait for their next turn.
	turnBegins = time.Minute
	// noFanOutFor is how long no fan-out could be reached when an agent begins to take its turns.
	noFanOutFor = 3 * time.Minute
)

// place returns which turn is a node's, 0 to turns-1. A node that is not among those that are known
// has one by its name.
func place(nodes []string, node string) int64 {
	slices.Sort(nodes)
	if at, ok := slices.BinarySearch(nodes, node); ok {
		return int64(at % turns)
	}
	h := fnv.New32a()
	h.Write([]byte(node))
	return int64(h.Sum32() % turns)
}

// turnAt returns when the turn of a place begins that has not ended, and when it ends.
func turnAt(place int64, now time.Time) (begin, end time.Time) {
	n := now.UnixNano() / int64(turn)
	n += (place - n%turns + turns) % turns
	begin = time.Unix(0, n*int64(turn))
	return begin, begin.Add(turn)
}

// nextTurn returns for how long a node waits until it begins to read, and for how long it may then.
func nextTurn(place int64, now time.Time) (wait, lasts time.Duration) {
	begin, end := turnAt(place, now)
	if now.Sub(begin) > turnBegins {
		begin, end = begin.Add(turns*turn), end.Add(turns*turn)
	}
	at := begin.Add(rand.N(turnBegins))
	if at.Before(now) {
		at = now
	}
	return at.Sub(now), end.Sub(at)
}
