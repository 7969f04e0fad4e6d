// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"errors"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/weir-net/weir/internal/model"
)

// PrefixQoS begins the annotations of pods that limit what they send and get; AnnotationIngress and
// AnnotationEgress are those that Kubernetes itself defines, which count where the former say
// nothing of bandwidth.
const (
	PrefixQoS         = "qos.projectcalico.org/"
	AnnotationIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationEgress  = "kubernetes.io/egress-bandwidth"
)

// quantities are the annotations of a direction, with the least and the largest value of each and
// what it goes without.
var quantities = []struct {
	name        string // after the direction
	least, most uint64
	with        string // the annotation without which it means nothing
	of          func(*model.Limits) any
}{
	{"Bandwidth", 1e3, 1e15, "", func(l *model.Limits) any { return &l.Bandwidth }},
	{"Burst", 1e3, math.MaxUint32 * 8, "Bandwidth", func(l *model.Limits) any { return &l.Burst }},
	{"Peakrate", 1010, 1010e12, "Bandwidth", func(l *model.Limits) any { return &l.Peakrate }},
	{"Minburst", 1e3, 1e8, "Peakrate", func(l *model.Limits) any { return &l.Minburst }},
	{"PacketRate", 1, 10e3, "", func(l *model.Limits) any { return &l.PacketRate }},
	{"PacketBurst", 1, 10e3, "PacketRate", func(l *model.Limits) any { return &l.PacketBurst }},
	{"MaxConnections", 1, math.MaxUint32, "", func(l *model.Limits) any { return &l.Connections }},
}

// QoS reads the annotations of a pod that limit what it sends and gets; nil = none does. What
// cannot be read is reported and left out, what is out of range becomes the nearest value that is
// not: the pod runs in any case, as with Calico.
func (f *Finding) QoS(annotations map[string]string) *model.QoS {
	var out model.QoS
	for _, d := range []struct {
		direction, kubernetes string
		to                    *model.Limits
	}{{"ingress", AnnotationIngress, &out.Ingress}, {"egress", AnnotationEgress, &out.Egress}} {
		for _, q := range quantities {
			name := PrefixQoS + d.direction + q.name
			if _, has := annotations[name]; !has && q.name == "Bandwidth" {
				name = d.kubernetes
			}
			if text, has := annotations[name]; has {
				f.quantity(name, text, q.least, q.most, q.of(d.to))
			}
		}
		f.alone(annotations, d.direction, d.to)
	}
	out.DSCP = f.DSCP(annotations)
	if out == (model.QoS{}) {
		return nil
	}
	return &out
}

func annotationName(name string) string { return "metadata.annotations[" + name + "]" }

// quantity reads one into a *uint64 or a *uint32, whose range holds the largest value.
func (f *Finding) quantity(name, text string, least, most uint64, to any) {
	v, err := quantityOf(text, least, most)
	switch {
	case v == 0:
		f.Add(annotationName(name), text, err.Error(), "it is left out")
	case err != nil:
		f.Add(annotationName(name), text, err.Error(), fmt.Sprintf("%d is in force", v))
	}
	switch to := to.(type) {
	case *uint64:
		*to = v
	case *uint32:
		*to = uint32(v)
	}
}

// quantityOf returns 0 for what is no quantity, and the nearest bound with an error for what is out
// of range.
func quantityOf(text string, least, most uint64) (uint64, error) {
	if len(text) > 64 {
		return 0, errors.New("is too long for a quantity such as 10M")
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, errors.New("is no quantity such as 10M or 1500k")
	}
	switch n := q.Value(); { // rounded up, and bounded by the type
	case q.Sign() <= 0 || uint64(n) < least:
		return least, fmt.Errorf("is below the least, %d", least)
	case uint64(n) > most:
		return most, fmt.Errorf("is above the most, %d", most)
	default:
		return uint64(n), nil
	}
}

// alone takes out what means nothing without another annotation.
func (f *Finding) alone(annotations map[string]string, direction string, l *model.Limits) {
	set := map[string]bool{"": true, "Bandwidth": l.Bandwidth > 0, "Peakrate": l.Peakrate > l.Bandwidth && l.Bandwidth > 0, "PacketRate": l.PacketRate > 0}
	for _, q := range quantities {
		name := PrefixQoS + direction + q.name
		text, has := annotations[name]
		switch {
		case !has:
			continue
		case !set[q.with]:
			f.Add(annotationName(name), text, "means nothing without "+PrefixQoS+direction+q.with, "it is left out")
		case q.name == "Peakrate" && l.Peakrate > 0 && !set["Peakrate"]:
			f.Add(annotationName(name), text, "is not above "+PrefixQoS+direction+"Bandwidth", "it is left out")
		default:
			continue
		}
		switch to := q.of(l).(type) {
		case *uint64:
			*to = 0
		case *uint32:
			*to = 0
		}
	}
}
