// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// defaults that a text need not mention and String leaves out.
const (
	defaultTTL    = 64
	defaultWindow = 65535
	quoted        = 8 // bytes of the transport that an error quotes unless the text says otherwise
)

const flagLetters = "FSRP.UEW" // bit 0 first, as tcpdump writes them

// Words splits a packet's text at spaces outside quotation marks and brackets. It fails on a mark
// or a bracket that is not closed.
func Words(s string) ([]string, error) {
	var words []string
	for i := 0; i < len(s); {
		if s[i] == ' ' || s[i] == '\t' {
			i++
			continue
		}
		start, depth := i, 0
		for ; i < len(s) && (depth > 0 || s[i] != ' ' && s[i] != '\t'); i++ {
			switch s[i] {
			case '"':
				q, err := strconv.QuotedPrefix(s[i:])
				if err != nil {
					return nil, fmt.Errorf("quotation mark that is not closed in %q", s[start:])
				}
				i += len(q) - 1
			case '[':
				depth++
			case ']':
				depth--
			}
		}
		if depth != 0 {
			return nil, fmt.Errorf("brackets do not match in %q", s[start:])
		}
		words = append(words, s[start:i])
	}
	return words, nil
}

// Parse reads the text form. Errors name the word that is not understood.
func Parse(s string) (*Packet, error) {
	words, err := Words(s)
	if err != nil {
		return nil, err
	}
	p, extra, err := parse(words)
	if err != nil {
		return nil, fmt.Errorf("packet %q: %w", s, err)
	}
	if extra.l4 != nil || extra.total != nil {
		return nil, fmt.Errorf("packet %q: l4= and tot= belong into a quoted packet", s)
	}
	if _, err := p.Marshal(); err != nil {
		return nil, fmt.Errorf("packet %q: %w", s, err)
	}
	return p, nil
}

// MustParse is Parse for texts that are part of a program.
func MustParse(s string) *Packet {
	p, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return p
}

// quoteExtra is what only a quoted packet's text may say.
type quoteExtra struct {
	l4    []byte
	total *uint16
}

func parse(words []string) (*Packet, quoteExtra, error) {
	if len(words) == 0 {
		return nil, quoteExtra{}, errors.New("empty")
	}
	p := &Packet{Type: TypeIPv4, IP: IPv4{TTL: defaultTTL}}
	rest := words[1:]
	switch words[0] {
	case "frame":
		p.Kind, p.Type, p.IP = Frame, 0, IPv4{}
	case "tcp":
		p.Kind, p.IP.Proto, p.Window = TCP, ProtoTCP, defaultWindow
	case "udp":
		p.Kind, p.IP.Proto = UDP, ProtoUDP
	case "sctp":
		p.Kind, p.IP.Proto, p.Chunk = SCTP, ProtoSCTP, ChunkData
	case "icmp":
		p.Kind = Echo
	case "ip":
		p.Kind = Other
	default:
		return nil, quoteExtra{}, fmt.Errorf("%q: not one of tcp, udp, sctp, icmp, ip, frame", words[0])
	}
	if p.Kind != Frame {
		if len(rest) < 3 || rest[1] != ">" {
			return nil, quoteExtra{}, errors.New("source > destination missing")
		}
		if err := p.parseEnds(rest[0], rest[2]); err != nil {
			return nil, quoteExtra{}, err
		}
		rest = rest[3:]
	}
	if words[0] == "icmp" {
		p.IP.Proto = p.IP.icmp()
		if len(rest) == 0 {
			return nil, quoteExtra{}, errors.New("echo, reply or error missing")
		}
		switch rest[0] {
		case "echo":
			p.ICMPType = p.IP.pick(8, echoRequest6)
		case "reply":
			p.ICMPType = p.IP.pick(0, echoReply6)
		case "query":
			p.ICMPType = 13
		case "answer":
			p.ICMPType = 14
		case "error":
			p.Kind, p.ICMPType = Error, p.IP.pick(3, 1)
		default:
			return nil, quoteExtra{}, fmt.Errorf("%q: not one of echo, reply, query, answer, error", rest[0])
		}
		rest = rest[1:]
	}
	var extra quoteExtra
	for _, w := range rest {
		if err := p.parseWord(w, &extra); err != nil {
			return nil, extra, fmt.Errorf("%q: %w", w, err)
		}
	}
	if p.Kind == SCTP && p.Payload == nil {
		p.Payload = clone(chunkRest)
	}
	if p.Kind == Echo && (!isEcho(&p.IP, p.ICMPType, 0) || wordOf(p.ICMPType) != words[4]) {
		return nil, extra, fmt.Errorf("%q: type=%d is none of this family", words[4], p.ICMPType)
	}
	if p.IP.six() {
		p.IP.Ext = p.IP.chain()
	}
	return p, extra, nil
}

func (p *Packet) parseEnds(src, dst string) error {
	for _, e := range []struct {
		text string
		addr *netip.Addr
		port *uint16
	}{{src, &p.IP.Src, &p.SrcPort}, {dst, &p.IP.Dst, &p.DstPort}} {
		var err error
		if p.Kind == TCP || p.Kind == UDP || p.Kind == SCTP {
			var ap netip.AddrPort
			ap, err = netip.ParseAddrPort(e.text)
			*e.addr, *e.port = ap.Addr(), ap.Port()
		} else {
			*e.addr, err = netip.ParseAddr(e.text)
		}
		if err != nil {
			return err
		}
	}
	if p.IP.Src.Is4() != p.IP.Dst.Is4() || p.IP.Src.Zone()+p.IP.Dst.Zone() != "" {
		return fmt.Errorf("%q and %q are not addresses of one family", src, dst)
	}
	p.Type = p.etherType()
	return nil
}

func (p *Packet) parseWord(w string, extra *quoteExtra) error {
	if strings.HasPrefix(w, "[") {
		if p.Kind != Error || p.Quote != nil {
			return errors.New("a quoted packet belongs into an ICMP error, once")
		}
		q, err := parseQuote(strings.TrimSuffix(strings.TrimPrefix(w, "["), "]"))
		p.Quote = q
		return err
	}
	key, value, ok := strings.Cut(w, "=")
	if !ok {
		return p.parseBare(w)
	}
	if f := p.number(key); f != nil {
		return f.set(value)
	}
	switch {
	case key == "frag" && p.Kind == Other:
		value, p.IP.MF = strings.CutSuffix(value, "+")
		return number{p: &p.IP.Offset}.set(value)
	case key == "frag":
		return errors.New("a fragment is written as ip … proto=… data=…")
	case key == "smac":
		return parseMAC(value, &p.SrcMAC)
	case key == "dmac":
		return parseMAC(value, &p.DstMAC)
	case key == "ipopts" && p.Kind != Frame:
		return parseData(value, &p.IP.Options)
	case key == "ext" && p.IP.six():
		return p.IP.parseExt(value)
	case key == "opts" && p.Kind == TCP:
		return parseData(value, &p.Options)
	case key == "data" && p.Kind != Error:
		return parseData(value, &p.Payload)
	}
	switch key {
	case "fill":
		n := number{p: new(uint16)}
		if err := n.set(value); err != nil || p.Kind == Error {
			return errors.New("not a number of bytes, or not a packet with data")
		}
		p.Payload = bytes.Repeat([]byte("a"), int(n.get()))
		return nil
	case "l4":
		return parseData(value, &extra.l4)
	case "tot":
		extra.total = new(uint16)
		return number{p: extra.total}.set(value)
	}
	return errors.New("unknown word")
}

func (p *Packet) parseBare(w string) error {
	switch {
	case w == "df" && p.Kind != Frame:
		p.IP.DF = true
		return nil
	case w == "nosum" && (p.Kind == UDP || p.Kind == SCTP):
		p.NoSum = true
		return nil
	case p.Kind == SCTP:
		var err error
		p.Chunk, err = parseChunk(w)
		return err
	case w == "none" && p.Kind == TCP:
		return nil
	case p.Kind != TCP:
		return errors.New("unknown word")
	}
	for _, c := range w {
		bit := strings.IndexRune(flagLetters, c)
		if bit < 0 {
			return errors.New("neither a word nor TCP flags of " + flagLetters)
		}
		p.Flags |= 1 << bit
	}
	return nil
}

// String returns the text form; Parse of it gives an equal packet.
func (p *Packet) String() string {
	w := p.words()
	if p.Quote != nil && p.Kind == Error {
		w = append(w, "["+p.Quote.String()+"]")
	}
	return strings.Join(w, " ")
}

func (p *Packet) words() []string {
	var w []string
	add := func(s ...string) { w = append(w, s...) }
	switch p.Kind {
	case Frame:
		add("frame")
	case TCP, UDP, SCTP:
		add(map[Kind]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}[p.Kind], netip.AddrPortFrom(p.IP.Src, p.SrcPort).String(), ">", netip.AddrPortFrom(p.IP.Dst, p.DstPort).String())
	case Echo:
		add("icmp", p.IP.Src.String(), ">", p.IP.Dst.String(), wordOf(p.ICMPType))
	case Error:
		add("icmp", p.IP.Src.String(), ">", p.IP.Dst.String(), "error")
	default:
		add("ip", p.IP.Src.String(), ">", p.IP.Dst.String())
	}
	if p.Kind == TCP {
		add(FlagText(p.Flags))
	}
	if p.Kind == SCTP {
		add(chunkText(p.Chunk))
	}
	for _, key := range order {
		f := p.number(key)
		if f == nil || f.get() == f.plain && !f.always {
			continue
		}
		if f.hex {
			add(fmt.Sprintf("%s=0x%04x", key, f.get()))
		} else {
			add(fmt.Sprintf("%s=%d", key, f.get()))
		}
	}
	add(p.IP.extWords()...)
	if p.Kind == Other && p.Fragment() {
		more := map[bool]string{true: "+"}[p.IP.MF]
		add(fmt.Sprintf("frag=%d%s", p.IP.Offset, more))
	}
	for _, f := range []struct {
		on   bool
		text string
	}{
		{p.IP.DF && p.Kind != Frame, "df"},
		{p.NoSum && (p.Kind == UDP || p.Kind == SCTP), "nosum"},
		{p.SrcMAC != MAC{}, "smac=" + p.SrcMAC.String()},
		{p.DstMAC != MAC{}, "dmac=" + p.DstMAC.String()},
		{len(p.IP.Options) > 0 && p.Kind != Frame, "ipopts=0x" + hex.EncodeToString(p.IP.Options)},
		{len(p.Options) > 0 && p.Kind == TCP, "opts=0x" + hex.EncodeToString(p.Options)},
		{p.hasData(), "data=" + formatData(p.Payload)},
	} {
		if f.on {
			add(f.text)
		}
	}
	return w
}

// hasData: must the text mention the payload?
func (p *Packet) hasData() bool {
	if p.Kind == SCTP {
		return !bytes.Equal(p.Payload, chunkRest)
	}
	return len(p.Payload) > 0 && p.Kind != Error
}

// FlagText writes TCP flags as tcpdump does: S, S., F., P., R; none for no flag.
func FlagText(flags uint8) string {
	var b strings.Builder
	for _, i := range []int{1, 0, 2, 3, 5, 6, 7, 4} { // the dot comes last
		if flags&(1<<i) != 0 {
			b.WriteByte(flagLetters[i])
		}
	}
	if b.Len() == 0 {
		return "none"
	}
	return b.String()
}

// parseQuote reads a packet's text and cuts it to what an error quotes.
func parseQuote(s string) (*Quote, error) {
	words, err := Words(s)
	if err != nil {
		return nil, err
	}
	p, extra, err := parse(words)
	if err != nil {
		return nil, err
	}
	if p.Kind == Frame || p.Kind == Error {
		return nil, errors.New("frames and errors are not quoted in this form")
	}
	l4, err := p.marshalL4()
	if err != nil {
		return nil, err
	}
	q := &Quote{IP: p.IP, TotalLen: uint16(p.IP.size() + len(l4)), L4: l4}
	if len(l4) > quoted {
		q.L4 = l4[:quoted]
	}
	if extra.l4 != nil {
		q.L4 = extra.l4
	}
	if extra.total != nil {
		q.TotalLen = *extra.total
	}
	if n := q.IP.mustQuote(); len(q.L4) < n {
		return nil, fmt.Errorf("%d bytes of the quoted packet's transport: less than %d", len(q.L4), n)
	}
	return q, nil
}

// String returns the quoted packet's text without brackets. What the first eight bytes do not
// contain is not invented: where they differ from those of the packet named, l4= and tot= give
// them.
func (q *Quote) String() string {
	p := q.guess()
	s := strings.Join(p.words(), " ")
	if again, err := parseQuote(s); err == nil && again.TotalLen == q.TotalLen && bytes.Equal(again.L4, q.L4) {
		return s
	}
	return s + " l4=0x" + hex.EncodeToString(q.L4) + " tot=" + strconv.Itoa(int(q.TotalLen))
}

// guess returns the packet that a quote most likely was, as far as its text shows it.
func (q *Quote) guess() *Packet {
	p := &Packet{Kind: Other, IP: q.IP}
	p.Type = p.etherType()
	if q.IP.MF || q.IP.Offset != 0 || len(q.L4) < quoted {
		return p
	}
	switch {
	case q.IP.Proto == ProtoTCP:
		p.Kind, p.Window, p.Seq = TCP, defaultWindow, be.Uint32(q.L4[4:])
	case q.IP.Proto == ProtoUDP:
		p.Kind = UDP
	case q.IP.Proto == ProtoSCTP:
		p.Kind, p.Tag, p.Payload = SCTP, be.Uint32(q.L4[4:]), clone(chunkRest)
	case q.IP.Proto == q.IP.icmp() && isEcho(&q.IP, q.L4[0], q.L4[1]):
		p.Kind, p.ICMPType = Echo, q.L4[0]
		p.ID, p.EchoSeq = be.Uint16(q.L4[4:]), be.Uint16(q.L4[6:])
		return p
	default:
		return p
	}
	p.SrcPort, p.DstPort = be.Uint16(q.L4[0:]), be.Uint16(q.L4[2:])
	return p
}
