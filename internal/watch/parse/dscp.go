// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"strconv"
	"strings"
)

// annotationDSCP gives what a pod, or a host endpoint, sends out of the cluster a DSCP.
const annotationDSCP = PrefixQoS + "dscp"

// dscpNames are the names that Calico knows: RFC 2474 (default, class selectors), 2597 (assured
// forwarding), 3246 (expedited forwarding).
var dscpNames = map[string]uint8{
	"DF": 0, "EF": 46,
	"CS0": 0, "CS1": 8, "CS2": 16, "CS3": 24, "CS4": 32, "CS5": 40, "CS6": 48,
	"AF11": 10, "AF12": 12, "AF13": 14, "AF21": 18, "AF22": 20, "AF23": 22,
	"AF31": 26, "AF32": 28, "AF33": 30, "AF41": 34, "AF42": 36, "AF43": 38,
}

// DSCP reads the annotation, of a pod or a host endpoint: the number plus 1, 0 = none.
func (f *Finding) DSCP(annotations map[string]string) uint8 {
	text, has := annotations[annotationDSCP]
	if !has {
		return 0
	}
	value, ok := dscpOf(text)
	if !ok {
		f.Add(annotationName(annotationDSCP), text, "is no number from 0 to 63 and no name such as EF or AF11", "it is left out")
		return 0
	}
	return value + 1
}

// dscpOf reads a number or a name, in capitals or not.
func dscpOf(text string) (uint8, bool) {
	text = strings.TrimSpace(text)
	if n, err := strconv.ParseUint(text, 10, 8); err == nil {
		return uint8(n), n < 64
	}
	v, ok := dscpNames[strings.ToUpper(text)]
	return v, ok
}
