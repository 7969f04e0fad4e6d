// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/flows/ask"
	"github.com/weir-net/weir/internal/flowstore/names"
)

// lossesFor is how long a loss is told of.
const lossesFor = time.Hour

// Status is what `weir status` says of the store of flow records; it is empty where there is none.
type Status struct {
	Line, Fault string
	Lost        []string // what it lost in the last hour, one line each
}

// ReadStatus asks how the store of flow records is. A nil store is not asked.
func ReadStatus(ctx context.Context, kube kubernetes.Interface, store *ask.Store, now time.Time) (out Status, err error) {
	dep, err := kube.AppsV1().Deployments(names.Namespace).Get(ctx, names.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("get Deployment %s: %w", names.Name, err)
	}
	out.Line = fmt.Sprintf("%s %d/1 ready", names.Name, dep.Status.ReadyReplicas)
	if dep.Status.ReadyReplicas == 0 {
		out.Fault = "Deployment " + names.Name + " is not ready: flow records that agents overwrite meanwhile are lost; see `kubectl -n " + names.Namespace + " logs deploy/" + names.Name + "`"
		return out, nil
	}
	if store == nil {
		return out, nil
	}
	st, err := store.Status(ctx, now.Add(-lossesFor))
	if err != nil {
		out.Line += fmt.Sprintf(", it does not say how it is: %v", err)
		return out, nil
	}
	out.Line += ", " + ask.StatusLine(st)
	out.Lost = lostByStore(st)
	return out, nil
}

// What to do about what a node lost, by why.
var nodeAdvice = map[string]string{
	"interval": "more connections in one interval than fit; lower flowLogsFlushInterval",
	"ring":     "the agent read too late; give it more CPU, or raise flowLogsFlushInterval",
	"expired":  "the agent read too late; give it more CPU",
	"evicted":  "the table of connections was full; raise bpfMapSizeConntrack",
	"events":   "more packets were denied than are reported; what is denied goes on being denied",
}

// What to do about what the store lost, by why. Those of agents alone are said of their nodes.
var storeAdvice = map[string]string{
	"old":   "agents had overwritten them when the store asked; give it more CPU and a faster disk, or raise FELIX_FlowRecordsKept",
	"full":  "newer ones took their place before their age; raise --flows-size",
	"disk":  "they could not be written; see its log and its volume",
	"torn":  "what was written cannot be read, and is put aside; see its log",
	"queue": "they came faster than its disk takes them",
	"time":  "their end is in the future or longer ago than what is kept; look at the nodes' clocks",
	"large": "their names and labels are longer than 64 KiB",
}

// What to do about what other programs did not get, by why.
var exportAdvice = map[string]string{
	"queue":   "the collector is away or too slow",
	"refused": "the collector does not take them, or the protocol cannot say them; see the log of weir-flows",
	"end":     "the store ended before they were sent",
}

// LostByNode says what the agent of a node lost in the last hour, one line for each reason.
func LostByNode(node string, s *weirv1.FlowRecordsStatus, now time.Time) (lines []string) {
	if s == nil {
		return nil
	}
	for _, l := range s.Lost {
		if past := now.Sub(l.LastTime.Time); past < lossesFor {
			lines = append(lines, fmt.Sprintf("%s: %d (%s) since its agent began, the last %s ago%s", node, l.Records, l.Why, max(0, past).Round(time.Second), advice(nodeAdvice, l.Why)))
		}
	}
	return lines
}

func advice(of map[string]string, why string) string {
	if text := of[why]; text != "" {
		return ": " + text
	}
	return "" // of another version
}

func lostByStore(st *flows.StoreStatus) (lines []string) {
	for _, why := range slices.Sorted(maps.Keys(st.Lost)) {
		if st.Lost[why] == 0 || nodeAdvice[why] != "" {
			continue
		}
		line := fmt.Sprintf("%s: %d (%s)%s", names.Name, st.Lost[why], why, advice(storeAdvice, why))
		if why == "old" && len(st.Old) > 0 {
			var of []string
			for _, n := range st.Old {
				of = append(of, fmt.Sprintf("%s %d", n.Node, n.Records))
			}
			line += "; by node, since the store knows it: " + strings.Join(of, ", ")
		}
		lines = append(lines, line)
	}
	for _, to := range slices.Sorted(maps.Keys(st.Exports)) {
		for _, why := range slices.SortedFunc(maps.Keys(st.Exports[to]), cmp.Compare) {
			if n := st.Exports[to][why]; n > 0 {
				lines = append(lines, fmt.Sprintf("%s: %d (%s) not sent by %s since it started%s", names.Name, n, why, to, advice(exportAdvice, why)))
			}
		}
	}
	return lines
}
