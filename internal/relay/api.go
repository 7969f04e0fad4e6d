// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/flows"
	"github.com/weir-net/weir/internal/peerauth"
	"github.com/weir-net/weir/internal/relay/agents"
	"github.com/weir-net/weir/internal/relay/live"
)

// routes adds what the API server asks: what there is, and the questions.
func (r *Relay) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+live.Root, r.discovery)
	mux.HandleFunc(live.Root+"/"+live.Resource+"/{node}/{question}", r.question)
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
		if _, err := r.cfg.Proxy.User(req); err != nil {
			refuse(w, unauthorized(err))
			return
		}
		refuse(w, failure{http.StatusNotFound, metav1.StatusReasonNotFound, "", "there is no " + req.URL.Path})
	})
}

// failure is an answer that is none.
type failure struct {
	code   int
	reason metav1.StatusReason
	cause  string
	text   string
}

func refuse(w http.ResponseWriter, f failure) {
	s := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: int32(f.code), Reason: f.reason, Message: f.text}
	if f.cause != "" {
		s.Details = &metav1.StatusDetails{Group: live.Group, Kind: live.Resource, Causes: []metav1.StatusCause{{Type: metav1.CauseType(f.cause), Message: f.text}}}
	}
	answer(w, f.code, s)
}

func answer(w http.ResponseWriter, code int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(text, '\n')) // who asked may have gone
}

func unauthorized(err error) failure {
	if errors.Is(err, peerauth.ErrUnknownProxy) {
		return failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "", err.Error()}
	}
	return failure{http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "", peerauth.ErrNotProxied.Error()}
}

// discovery says what the group has; the API server asks this, too, to know whether the controller
// is there.
func (r *Relay) discovery(w http.ResponseWriter, req *http.Request) {
	if _, err := r.cfg.Proxy.User(req); err != nil {
		refuse(w, unauthorized(err))
		return
	}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: live.Group + "/" + live.Version}
	for question, verb := range live.Verbs() {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: live.Resource + question, SingularName: "", Kind: "Agent", Verbs: metav1.Verbs{verb}})
	}
	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return cmp.Compare(a.Name, b.Name) })
	answer(w, http.StatusOK, list)
}

// question answers a user's question about a node by the node's agent.
func (r *Relay) question(w http.ResponseWriter, req *http.Request) {
	question := "/" + req.PathValue("question")
	code := r.ask(w, req, req.PathValue("node"), question)
	if _, known := live.Verbs()[question]; !known {
		question = "other"
	}
	r.asked.WithLabelValues(question, strconv.Itoa(code)).Inc()
}

// ask returns the code of its answer.
func (r *Relay) ask(w http.ResponseWriter, req *http.Request, node, question string) int {
	fail := func(f failure) int {
		refuse(w, f)
		return f.code
	}
	user, err := r.cfg.Proxy.User(req)
	if err != nil {
		return fail(unauthorized(err))
	}
	verb := live.Verbs()[question]
	method := http.MethodGet
	if verb == "create" {
		method = http.MethodPost
	}
	switch {
	case verb == "" || len(validation.IsDNS1123Subdomain(node)) > 0 && (node != live.AllNodes || question != flows.Path):
		return fail(failure{http.StatusNotFound, metav1.StatusReasonNotFound, live.CauseUnknown, "there is no " + req.URL.Path})
	case req.Method != method:
		return fail(failure{http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "", "this is asked by " + method})
	}
	may, err := peerauth.Allowed(req.Context(), r.cfg.Kube, user, authorizationv1.ResourceAttributes{Group: live.Group, Version: live.Version,
		Resource: live.Resource, Subresource: question[1:], Name: node, Verb: verb})
	if err != nil {
		r.cfg.Log.Warn("the rights of a user could not be asked for", "err", err)
		return fail(failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "", "the API server does not answer the controller"})
	}
	if !may {
		return fail(failure{http.StatusForbidden, metav1.StatusReasonForbidden, "",
			fmt.Sprintf("%q may not %s %s%s in group %s for node %s", user.Name, verb, live.Resource, question, live.Group, node)})
	}
	if !r.begin(user.Name) {
		return fail(failure{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "", "too many questions at a time"})
	}
	defer r.end(user.Name)
	if node == live.AllNodes {
		if a := r.stores.Any(req.Context()); a != nil {
			return r.handOn(w, req, a, "the store of flow records", question, method)
		}
		return fail(failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, live.CauseNoAgent, "no store of flow records is connected to the controller"})
	}
	a := r.agents.Of(req.Context(), node)
	if a == nil {
		return fail(failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, live.CauseNoAgent, "no agent of node " + node + " is connected to the controller"})
	}
	return r.handOn(w, req, a, "the agent of node "+a.Peer.Node, question, method)
}

// Questions at a time, of all users and of one: monitors of all nodes of a large cluster are one
// question a node.
const (
	maxAsking        = 4096
	maxAskingPerUser = 1536
)

func (r *Relay) begin(user string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total >= maxAsking || r.asking[user] >= maxAskingPerUser {
		return false
	}
	r.total++
	r.asking[user]++
	return true
}

func (r *Relay) end(user string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.asking[user]--; r.asking[user] == 0 {
		delete(r.asking, user)
	}
}

const (
	// answerWithin is how long an agent may take until its answer begins.
	answerWithin = 30 * time.Second
	// readWithin is how long who asked may take to read a piece, and an agent to send the next:
	// events have a line each 15 s at least.
	readWithin = 45 * time.Second
	// maxAnswer bounds answers of one piece.
	maxAnswer = 16 << 20
)

// handOn asks an agent, or the store, and copies its answer; who names it. What an agent says is
// its node's word: nothing of it but the body is taken over.
func (r *Relay) handOn(w http.ResponseWriter, req *http.Request, a *agents.Agent, who, question, method string) int {
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	late := time.AfterFunc(answerWithin, cancel)
	defer late.Stop()
	path, body := question, io.Reader(nil)
	if method == http.MethodPost {
		body = http.MaxBytesReader(w, req.Body, wire.MaxBody)
	}
	query, asked := url.Values{}, req.URL.Query()
	for _, name := range live.Parameters(question) {
		query.Set(name, asked.Get(name))
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the question was read; where there is no deadline, there is none to take away
	_ = out.SetWriteDeadline(time.Now().Add(answerWithin + readWithin))
	resp, err := a.Conn.Ask(ctx, method, path, body)
	if err != nil {
		f := failure{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, live.CauseNoAgent, who + " does not answer"}
		refuse(w, f)
		return f.code
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		f := refusal(resp, who)
		refuse(w, f)
		return f.code
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	left := int64(maxAnswer)
	if question == "/events" || question == flows.Path {
		left = -1
	}
	if err := copyPieces(w, resp.Body, left, late); err != nil {
		cancel()
		// The answer ends early, and who asked is to see it.
		panic(http.ErrAbortHandler)
	}
	return http.StatusOK
}

// refusal is an agent's answer that is none.
func refusal(resp *http.Response, who string) failure {
	if resp.Header.Get(wire.UnknownQuestion) != "" {
		return failure{http.StatusNotImplemented, metav1.StatusReasonUnknown, live.CauseUnknown, who + " does not know this question"}
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return failure{http.StatusConflict, metav1.StatusReasonConflict, live.CauseRefused, printable(string(text))}
}

// printable leaves out what would control the terminal of who reads a node's words.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) || c == ' ' {
			return c
		}
		return -1
	}, strings.ReplaceAll(strings.TrimSpace(text), "\n", " "))
}

// copyPieces copies at most left bytes (-1 = without an end), each piece as it comes. It holds one
// piece: who reads slowly makes the agent wait, and one that does not read is left.
func copyPieces(w http.ResponseWriter, from io.Reader, left int64, late *time.Timer) error {
	out := http.NewResponseController(w)
	piece := make([]byte, 8<<10)
	for {
		late.Reset(readWithin)
		n, err := from.Read(piece)
		if n > 0 {
			if left >= 0 {
				if left -= int64(n); left < 0 {
					return errors.New("the answer is too long")
				}
			}
			_ = out.SetWriteDeadline(time.Now().Add(readWithin)) // where there is none the write says so
			if _, err := w.Write(piece[:n]); err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
