// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apiwire "github.com/weir-net/weir/internal/agentapi/wire"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/wireguard"
)

// changer has keys, and gets a next one for each that is to be replaced.
type changer struct{ st *wireguard.Status }

func (c *changer) Status() *wireguard.Status { return c.st }

func (c *changer) Prepare(instead model.WireGuardKeys) error {
	for _, six := range []bool{false, true} {
		if k := instead.Of(six); k != (model.WireGuardKey{}) && k == c.st.Keys.Of(six) {
			k[1]++
			c.st.Next = c.st.Next.With(six, k)
		}
	}
	return nil
}

func TestKeyChangeIsAsked(t *testing.T) {
	t.Parallel()
	ask := func(c *changer, body string) (int, string, apiwire.Keys) {
		w := httptest.NewRecorder()
		answerKeyChange(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, apiwire.KeyPath, strings.NewReader(body)), "n1", c)
		text := w.Body.String()
		var out apiwire.Keys
		if w.Code == http.StatusOK {
			if err := json.Unmarshal([]byte(text), &out); err != nil {
				t.Fatal(err)
			}
		}
		return w.Code, text, out
	}
	if code, text, _ := ask(&changer{}, "{}"); code != http.StatusConflict || !strings.Contains(text, "wireguardEnabled") {
		t.Errorf("without encryption: %d %s", code, text)
	}
	if code, text, _ := ask(&changer{&wireguard.Status{Errs: []error{errors.New("the port is taken")}}}, "{}"); code != http.StatusConflict || !strings.Contains(text, "the port is taken") {
		t.Errorf("without a key: %d %s", code, text)
	}
	both := model.WireGuardKeys{IPv4: model.WireGuardKey{1}, IPv6: model.WireGuardKey{2}}
	c := &changer{&wireguard.Status{Keys: both}}
	for _, bad := range []string{"[]", `{"replace":[]}`, "x"} {
		if code, _, _ := ask(c, bad); code != http.StatusBadRequest || c.st.Next != (model.WireGuardKeys{}) {
			t.Errorf("%s: %d, %v", bad, code, c.st.Next)
		}
	}
	first := publicKeys(both)
	if code, _, got := ask(c, "{}"); code != http.StatusOK || got.Node != "n1" || !slices.Equal(got.Public, first) || !got.Changing || c.st.Next.IPv4 == (model.WireGuardKey{}) || c.st.Next.IPv6 == (model.WireGuardKey{}) {
		t.Errorf("%d, %+v, %v", code, got, c.st.Next)
	}
	// Asked again about the keys of before, a node that has others changes nothing.
	c.st.Keys, c.st.Next = c.st.Next, model.WireGuardKeys{}
	question, _ := json.Marshal(apiwire.KeyChange{Replaces: first})
	if code, _, got := ask(c, string(question)); code != http.StatusOK || got.Changing || slices.Equal(got.Public, first) || c.st.Next != (model.WireGuardKeys{}) {
		t.Errorf("asked again: %d, %+v", code, got)
	}
}

// A next key is used some time after it was published, and not before.
func TestNextKeyIsUsedWhenItIsKnown(t *testing.T) {
	t.Parallel()
	var k keysKnown
	at := time.Unix(1e9, 0)
	one, two := model.WireGuardKeys{IPv4: model.WireGuardKey{1}}, model.WireGuardKeys{IPv4: model.WireGuardKey{2}}
	for i, step := range []struct {
		next, published model.WireGuardKeys
		after           time.Duration
		use             bool
	}{
		{one, model.WireGuardKeys{}, 0, false},
		{one, model.WireGuardKeys{}, time.Hour, false}, // however long it is not published
		{one, one, time.Second, false},
		{one, one, nextKnownWithin - time.Millisecond, false},
		{two, one, time.Second, false}, // another one begins anew
		{two, two, time.Second, false},
		{two, two, nextKnownWithin, true},
		{model.WireGuardKeys{}, two, time.Second, false},
		{two, two, nextKnownWithin, false},
	} {
		at = at.Add(step.after)
		if got := k.use(step.next, step.published, at); got != step.use {
			t.Errorf("step %d: %t", i, got)
		}
	}
}
