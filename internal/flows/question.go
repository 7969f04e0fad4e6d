// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// Question is what somebody asks a store of records: which records, and what of them. An agent
// answers with all records of the filter, whatever else is asked.
type Question struct {
	Filter
	Limit  int  // the latest so many records; 0 = all
	Oldest bool // with the oldest record first, not the latest
	Top    int  // sums of the so many largest pairs of workloads, and no records
	Status bool // nothing but the status
}

// Query is the question as parameters.
func (q Question) Query() url.Values {
	v := q.Filter.Query()
	for name, n := range map[string]int{"limit": q.Limit, "top": q.Top} {
		if n != 0 {
			v.Set(name, strconv.Itoa(n))
		}
	}
	for name, is := range map[string]bool{"oldest": q.Oldest, "status": q.Status} {
		if is {
			v.Set(name, "true")
		}
	}
	return v
}

// ParseQuestion reads what Query wrote.
func ParseQuestion(v url.Values) (q Question, err error) {
	if q.Filter, err = ParseQuery(v); err != nil {
		return q, err
	}
	for name, to := range map[string]*int{"limit": &q.Limit, "top": &q.Top} {
		if text := v.Get(name); text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
				return q, fmt.Errorf("%s %q: no number", name, text)
			}
		}
	}
	for name, to := range map[string]*bool{"oldest": &q.Oldest, "status": &q.Status} {
		if text := v.Get(name); text != "" {
			if *to, err = strconv.ParseBool(text); err != nil {
				return q, fmt.Errorf("%s %q: true or false", name, text)
			}
		}
	}
	return q, nil
}

// Line is one line of an answer: a record or a sum; last is the status, of an agent or of a store.
// An empty line says that the answer goes on.
type Line struct {
	*Flow
	Sum    *Sum         `json:"sum,omitempty"`
	Status *Status      `json:"status,omitempty"`
	Store  *StoreStatus `json:"store,omitempty"`
}

// Sum is what the records of a pair of ends and a port say together.
type Sum struct {
	From, To string // pods or addresses, of a store "namespace/workload"
	Protocol string
	Port     uint16
	Verdict  string
	Rule     string // that denied
	Packets  uint64 // of both directions
	Bytes    uint64 // of IP; 0 of what was denied
}

// Largest sorts sums and returns the n largest: by bytes, or by packets of what was denied.
func Largest(sums []Sum, n int, denied bool) []Sum {
	slices.SortFunc(sums, func(a, b Sum) int { return compareSums(a, b, denied) })
	return sums[:min(n, len(sums))]
}

func compareSums(a, b Sum, denied bool) int {
	first, second := -cmp.Compare(a.Bytes, b.Bytes), -cmp.Compare(a.Packets, b.Packets)
	if denied {
		first, second = second, first
	}
	return cmp.Or(first, second, cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Verdict, b.Verdict), cmp.Compare(a.Rule, b.Rule))
}

// NodeLost is how many records of a node are not there.
type NodeLost struct {
	Node    string `json:"node"`
	Records uint64 `json:"records"`
}

// MostNodes bounds StoreStatus.Old.
const MostNodes = 10

// StoreStatus is how a store of records is. Losses, and what is coarse, are of the time of the
// question.
type StoreStatus struct {
	Records int               `json:"records"`          // that are kept
	Bytes   int64             `json:"bytes"`            // on the disk
	Oldest  time.Time         `json:"oldest"`           // End of the oldest record; zero = there is none
	Nodes   int               `json:"nodes"`            // that are followed now
	Silent  []string          `json:"silent,omitempty"` // nodes that were followed, and are not now
	Lost    map[string]uint64 `json:"lost,omitempty"`   // records that are not there, by why
	// Old are the nodes whose agents had records no more when the store asked for them, with how
	// many: the MostNodes that lost most.
	Old []NodeLost `json:"old,omitempty"`
	// Exports are the records that other programs did not get, since the store started, of those
	// where it was so in the time of the question: by protocol and why.
	Exports map[string]map[string]uint64 `json:"exports,omitempty"`
	// Counted are records that it lost since it started, by why.
	Counted map[string]uint64 `json:"counted,omitempty"`
	// Coarse is up to when records are sums, over up to CoarseSeconds (Flow.Records).
	Coarse        time.Time `json:"coarse,omitzero"`
	CoarseSeconds float64   `json:"coarseSeconds,omitempty"`
	More          bool      `json:"more,omitempty"`      // there are more records than the limit
	NotSummed     uint64    `json:"notSummed,omitempty"` // records of pairs beyond those that are told apart
}
