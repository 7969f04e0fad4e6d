// SPDX-License-Identifier: Apache-2.0

package agentapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apimachinery/pkg/util/httpstream/wsstream"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/localsock"
	"github.com/weir-net/weir/internal/relay/live"
)

// apiServer is an API server of one namespace of agents, whose exec runs here what `weir-agent ask`
// runs.
type apiServer struct {
	t      *testing.T
	runDir string // of the agent
	pods   []corev1.Pod
	old    bool // agents do not have the command
	noWS   bool // WebSocket does not get through
	refuse *metav1.Status
	noList bool
	// live is what the group live.weir.dev answers; nil = it is not there.
	live http.HandlerFunc

	mu   sync.Mutex
	seen []string // ways of exec
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(code int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		json.NewEncoder(w).Encode(v)
	}
	switch {
	case strings.HasPrefix(r.URL.Path, live.Root) && s.live != nil:
		s.note("live")
		s.live(w, r)
	case strings.HasSuffix(r.URL.Path, "/namespaces/agents/pods") && s.noList:
		answer(http.StatusForbidden, forbidden("pods is forbidden"))
	case strings.HasSuffix(r.URL.Path, "/namespaces/agents/pods"):
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		for _, p := range s.pods {
			if r.URL.Query().Get("fieldSelector") == "spec.nodeName="+p.Spec.NodeName && r.URL.Query().Get("labelSelector") == agentLabels {
				list.Items = append(list.Items, p)
			}
		}
		answer(http.StatusOK, list)
	case !strings.HasSuffix(r.URL.Path, "/exec"):
		answer(http.StatusNotFound, metav1.Status{})
	case s.refuse != nil:
		answer(int(s.refuse.Code), s.refuse)
	case wsstream.IsWebSocketRequest(r) && s.noWS:
		http.Error(w, "no such protocol here", http.StatusBadRequest)
	case wsstream.IsWebSocketRequest(r):
		s.note("websocket")
		s.webSocket(w, r)
	default:
		s.note("spdy")
		s.spdy(w, r)
	}
}

func (s *apiServer) note(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, path)
}

func (s *apiServer) webSocket(w http.ResponseWriter, r *http.Request) {
	channels := []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: {Binary: true, Channels: channels}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		s.t.Error(err)
		return
	}
	defer conn.Close()
	json.NewEncoder(streams[3]).Encode(s.run(r, streams[0], streams[1], streams[2]))
}

func (s *apiServer) spdy(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		s.t.Error(err)
		return
	}
	opened := make(chan httpstream.Stream, 4)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, replySent <-chan struct{}) error {
		opened <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < 4 {
		stream := <-opened
		streams[stream.Headers().Get(corev1.StreamType)] = stream
	}
	status := s.run(r, streams[corev1.StreamTypeStdin], streams[corev1.StreamTypeStdout], streams[corev1.StreamTypeStderr])
	json.NewEncoder(streams[corev1.StreamTypeError]).Encode(status)
	for _, stream := range streams {
		stream.Close()
	}
}

// run is the command in the agent's pod, as cmd/weir-agent has it.
func (s *apiServer) run(r *http.Request, stdin io.Reader, stdout, stderr io.Writer) metav1.Status {
	args := r.URL.Query()["command"]
	if len(args) < 4 || !slices.Equal(args[:3], []string{agentProgram, "ask", "--attended"}) || r.URL.Query().Get("container") != agentContainer {
		s.t.Errorf("command %q", args)
	}
	if s.old {
		fmt.Fprintln(stderr, `weir-agent: unknown command "ask" for "weir-agent"`)
		return exit(1)
	}
	q := wire.Question{Path: args[3]}
	if len(args) == 6 && args[4] == "--data" {
		q.Body = args[5]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	var e *wire.Error
	if err := wire.Do(ctx, s.runDir, q, stdout); errors.As(err, &e) {
		fmt.Fprintln(stderr, "weir-agent:", err)
		return exit(e.Code)
	}
	return metav1.Status{Status: metav1.StatusSuccess}
}

func exit(code int) metav1.Status {
	return metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Message: "command terminated",
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: fmt.Sprint(code)}}}}
}

func forbidden(message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: message}
}

func agentPod(name, node string, running bool) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}}
	c := corev1.ContainerStatus{Name: agentContainer}
	if running {
		c.State.Running = &corev1.ContainerStateRunning{}
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{c}
	return p
}

// newAsker makes an asker of agents on the nodes a and b, with an agent that is a mux; c's does not
// run.
func newAsker(t *testing.T, mux http.Handler) (*Client, *apiServer) {
	t.Helper()
	s := &apiServer{t: t, runDir: t.TempDir(), pods: []corev1.Pod{agentPod("agent-a", "a", true), agentPod("agent-b", "b", true), agentPod("agent-c", "c", false)}}
	if mux != nil {
		l, err := localsock.Listen(filepath.Join(s.runDir, wire.SocketName))
		if err != nil {
			t.Fatal(err)
		}
		agent := &http.Server{Handler: mux}
		go agent.Serve(l)
		t.Cleanup(func() { agent.Close() })
	}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &Client{Kube: kube, Config: cfg, Namespace: "agents"}, s
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	json.NewEncoder(w).Encode(r.Method + " " + r.URL.String() + " " + string(body))
}

func TestAnswers(t *testing.T) {
	for _, noWS := range []bool{false, true} {
		a, s := newAsker(t, http.HandlerFunc(echo))
		s.noWS = noWS
		answers := make([]string, 2)
		for _, err := range Each([]string{"a", "b"}, func(i int, node string) error {
			return a.AskJSON(t.Context(), node, wire.Question{Path: "/why?of=" + node, Body: `{"a": "b c"}`}, &answers[i])
		}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		if want := []string{`POST /why?of=a {"a": "b c"}`, `POST /why?of=b {"a": "b c"}`}; !slices.Equal(answers, want) {
			t.Errorf("answers %q", answers)
		}
		var out bytes.Buffer
		if err := a.Ask(t.Context(), "a", wire.Question{Path: "/version"}, &out); err != nil || out.String() != "\"GET /version \"\n" {
			t.Errorf("%v %q", err, out.String())
		}
		if want := map[bool]string{false: "websocket", true: "spdy"}[noWS]; !slices.Equal(s.seen, []string{want, want, want}) {
			t.Errorf("asked by %q", s.seen)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	mux := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			http.Error(w, "one at a time", http.StatusTooManyRequests)
			return
		}
		w.Header().Set(wire.UnknownQuestion, "true")
		http.Error(w, "no such question", http.StatusNotFound)
	})
	for _, c := range []struct {
		name, node, path string
		change           func(*apiServer)
		is               error
		says             string
	}{
		{"refused", "a", "/refused", nil, ErrRefused, "one at a time"},
		{"unknown question", "a", "/later", nil, ErrTooOld, "/later"},
		{"no command", "a", "/x", func(s *apiServer) { s.old = true }, ErrTooOld, "upgrade"},
		{"no pod", "d", "/x", nil, ErrNoAgent, "no pod"},
		{"a pod that does not run", "c", "/x", nil, ErrNoAgent, "agent-c does not run"},
		{"nobody at the socket", "a", "/x", func(s *apiServer) { s.runDir = t.TempDir() }, ErrNoAgent, "starting"},
		{"no right to exec", "a", "/x", func(s *apiServer) { s.refuse = forbidden("pods/exec is forbidden") }, ErrNoRight, "verbs get and create on pods/exec in namespace agents"},
		{"no right to list", "a", "/x", func(s *apiServer) { s.noList = true }, ErrNoRight, "verb list on pods in namespace agents"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, s := newAsker(t, mux)
			if c.change != nil {
				c.change(s)
			}
			err := a.Ask(t.Context(), c.node, wire.Question{Path: c.path}, io.Discard)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v with %q", err, c.is, c.says)
			}
		})
	}
	a, _ := newAsker(t, mux)
	if err := a.Ask(t.Context(), "a", wire.Question{Path: "/x", Body: strings.Repeat("x", wire.MaxBody+1)}, io.Discard); err == nil {
		t.Error("a question that no agent reads was sent")
	}
}

// A stream ends at both ends when who asked does not want more.
func TestTheEndOfTheContext(t *testing.T) {
	for _, noWS := range []bool{false, true} {
		ended := make(chan struct{})
		a, s := newAsker(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			fmt.Fprintln(w, "first")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		s.noWS = noWS
		ctx, cancel := context.WithCancel(t.Context())
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- a.Ask(ctx, "a", wire.Question{Path: "/events"}, w) }()
		line := make([]byte, 6)
		if _, err := io.ReadFull(r, line); err != nil || string(line) != "first\n" {
			t.Fatalf("%q %v", line, err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		<-ended
	}
}

func TestAnOldSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, wire.SocketName)
	l, err := localsock.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // as when an agent is killed: the file stays
	var e *wire.Error
	if err := wire.Do(t.Context(), dir, wire.Question{Path: "/x"}, io.Discard); !errors.As(err, &e) || e.Code != wire.ExitNoAgent {
		t.Errorf("a socket of nobody: %v", err)
	}
	if l, err = localsock.Listen(path); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	server := &http.Server{Handler: http.HandlerFunc(echo)}
	go server.Serve(l)
	defer server.Close()
	if err := wire.Do(t.Context(), dir, wire.Question{Path: "/x"}, io.Discard); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
