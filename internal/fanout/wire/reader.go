// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/weir-net/weir/internal/model"
)

// reader reads one message. The first thing that is malformed ends it; what is not understood does
// not.
type reader struct {
	d     *Decoder
	texts []string

	where string // the field that is malformed, from the innermost one that was left
	err   error

	odd     string           // what of the rule or subject at hand is not understood first
	notRead map[uint32]error // of expressions, by their texts
}

// fail says that a field is malformed; without a name it is what a list or a message holds.
func (r *reader) fail(field, format string, args ...any) {
	if r.err == nil {
		r.where, r.err = field, fmt.Errorf(format, args...)
	}
}

// within says in what the malformed field is.
func (r *reader) within(field string) {
	if r.where != "" && r.where[0] != '[' {
		field += "."
	}
	r.where = field + r.where
}

// list converts a list, nil of an empty one.
func list[A, B any](r *reader, field string, in []A, f func(A) B) []B {
	if len(in) == 0 || r.err != nil {
		return nil
	}
	out := make([]B, len(in))
	for i, v := range in {
		if out[i] = f(v); r.err != nil {
			r.within(fmt.Sprintf("%s[%d]", field, i))
			return nil
		}
	}
	return out
}

// part converts a message within another one, nil when it is not there.
func part[A, B any](r *reader, field string, in *A, f func(*A) *B) *B {
	if in == nil || r.err != nil {
		return nil
	}
	out := f(in)
	if r.err != nil {
		r.within(field)
	}
	return out
}

func (r *reader) text(field string, at uint32) string {
	if at == 0 {
		return ""
	}
	if int64(at) > int64(len(r.texts)) {
		r.fail(field, "text %d of %d", at, len(r.texts))
		return ""
	}
	return r.texts[at-1]
}

func (r *reader) textList(field string, in []uint32) []string {
	return list(r, field, in, func(at uint32) string { return r.text("", at) })
}

// key is the name of an object, which none goes without.
func (r *reader) key(field string, name []byte) string {
	if len(name) == 0 {
		r.fail(field, "no name")
	}
	return string(name)
}

func (r *reader) keyText(field string, at uint32) string {
	text := r.text(field, at)
	if text == "" {
		r.fail(field, "no name")
	}
	return text
}

func (r *reader) name(field string, n *Name) (out model.Name) {
	if n != nil {
		out = model.Name{Namespace: r.text(field+".namespace", n.Namespace), Name: r.text(field+".name", n.Name)}
	}
	return out
}

func (r *reader) labels(field string, l *Labels) map[string]string {
	pairs := l.GetPairs()
	if len(pairs) == 0 {
		return nil
	}
	if len(pairs)%2 != 0 {
		r.fail(field, "%d texts are no pairs", len(pairs))
		return nil
	}
	out := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out[r.text(field, pairs[i])] = r.text(field, pairs[i+1])
	}
	return out
}

func (r *reader) port(field string, v uint32) uint16 {
	if v > math.MaxUint16 {
		r.fail(field, "%d is no port", v)
	}
	return uint16(v)
}

func (r *reader) protocol(field string, v uint32) model.Protocol {
	if v > math.MaxUint8 {
		r.fail(field, "%d is no protocol", v)
	}
	return model.Protocol(v)
}

// ignorable is the first number of fields that may be ignored in critical messages.
const ignorable = 100

// critical finds what a newer sender says in a message in which nothing may be ignored.
func (r *reader) critical(m protoreflect.ProtoMessage) {
	unknown := m.ProtoReflect().GetUnknown()
	for len(unknown) > 0 {
		number, _, n := protowire.ConsumeField(unknown)
		if n < 0 || number < ignorable {
			r.notUnderstood("%s has a field %d", m.ProtoReflect().Descriptor().Name(), number)
			return
		}
		unknown = unknown[n:]
	}
}

// notUnderstood says that the rule or subject at hand is not understood.
func (r *reader) notUnderstood(format string, args ...any) {
	if r.odd == "" {
		r.odd = fmt.Sprintf(format, args...)
	}
}

var errNoLanguage = errors.New("this Decoder reads no expressions")

// expression is a text of the selector language. A newer sender may have more words.
func (r *reader) expression(field string, at uint32) string {
	text := r.text(field, at)
	if text == "" {
		return ""
	}
	err, known := r.notRead[at]
	if !known {
		if err = errNoLanguage; r.d.Expression != nil {
			err = r.d.Expression(text)
		}
		if r.notRead == nil {
			r.notRead = map[uint32]error{}
		}
		r.notRead[at] = err
	}
	if err != nil {
		r.notUnderstood("%s: %v", field, err)
	}
	return text
}
