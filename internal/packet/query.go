// SPDX-License-Identifier: Apache-2.0

package packet

// answers are the ICMP types that answer queries by the identifier of these (RFC 792, 950): echo,
// timestamp, information, address mask.
var answers = map[uint8]uint8{8: 0, 13: 14, 15: 16, 17: 18}

// answers6 are those of ICMPv6 (RFC 4443).
var answers6 = map[uint8]uint8{echoRequest6: echoReply6}

// QueryType returns the type of the query that an ICMP message is, or answers; ok is false when it
// is neither, as with any code but 0.
func QueryType(h *IPv4, icmpType, code uint8) (query uint8, ok bool) {
	of := answers
	if h.six() {
		of = answers6
	}
	for q, a := range of {
		if code == 0 && (icmpType == q || icmpType == a) {
			return q, true
		}
	}
	return 0, false
}

// AnswerType returns the type of the answer to a query of this type, and of the query that this
// type answers, in either family.
func AnswerType(icmpType uint8) uint8 {
	for _, of := range []map[uint8]uint8{answers, answers6} {
		for q, a := range of {
			switch icmpType {
			case q:
				return a
			case a:
				return q
			}
		}
	}
	return icmpType
}

// isEcho: a query that is answered, or its answer, in most cases an echo.
func isEcho(h *IPv4, icmpType, code uint8) bool {
	_, ok := QueryType(h, icmpType, code)
	return ok
}

// isRequest distinguishes queries from answers.
func isRequest(icmpType uint8) bool {
	_, four := answers[icmpType]
	_, six := answers6[icmpType]
	return four || six
}

// wordOf is how the text form calls a Packet of kind Echo: echoes have words of their own.
func wordOf(icmpType uint8) string {
	switch {
	case icmpType == 8 || icmpType == echoRequest6:
		return "echo"
	case icmpType == 0 || icmpType == echoReply6:
		return "reply"
	case isRequest(icmpType):
		return "query"
	}
	return "answer"
}

// messagePorts are what represents the ports of an ICMP message: see Packet.Ports.
func messagePorts(h *IPv4, icmpType, code uint8, id uint16) (src, dst uint16) {
	query, ok := QueryType(h, icmpType, code)
	switch beyond := id + uint16(query); {
	case !ok:
		message := uint16(icmpType)<<8 | uint16(code)
		return message, message + OneWay
	case icmpType == query:
		return id, beyond
	default:
		return beyond, id
	}
}
