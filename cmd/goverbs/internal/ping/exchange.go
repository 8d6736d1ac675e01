// SPDX-License-Identifier: BSD-2-Clause

package ping

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// message is what two ends say over TCP, a line of JSON each: first the one that pings, then the server.
type message struct {
	Kind     string         `json:"kind,omitempty"`
	Size     int            `json:"size,omitempty"`
	Endpoint *rdma.Endpoint `json:"endpoint,omitempty"`
	PKeys    []string       `json:"pkeys,omitempty"`
	Error    string         `json:"error,omitempty"`
}

// longest line of a peer's.
const longest = 8 << 10

func say(w io.Writer, m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func hear(r io.Reader) (m message, err error) {
	line, err := bufio.NewReaderSize(io.LimitReader(r, longest), 512).ReadBytes('\n')
	if err != nil {
		if len(line) == 0 {
			return m, errors.New("the peer closed the connection without a word: it is no goverbs serve")
		}
		return m, fmt.Errorf("the peer sent %.40q, which is no line of goverbs serve: %w", line, err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("the peer sent %.40q: it is no goverbs serve of this version", line)
	}
	if m.Error != "" {
		return m, &answer{m.Error}
	}
	for _, key := range m.PKeys {
		if _, err := strconv.ParseUint(key, 0, 16); err != nil {
			return m, fmt.Errorf("the peer sent %.40q, which is no P_Key", key)
		}
	}
	if m.Endpoint == nil {
		return m, fmt.Errorf("the peer sent %.40q, which has no endpoint", line)
	}
	return m, nil
}

// answer is an error that a server gave in place of an endpoint.
type answer struct{ what string }

// Error quotes: the words are another host's, and for a terminal.
func (a *answer) Error() string { return fmt.Sprintf("the peer says: %.400q", a.what) }

// ask tells the endpoint of this end and hears that of the peer.
func ask(conn net.Conn, o *Options, kind string, e *end) (message, error) {
	if err := conn.SetDeadline(time.Now().Add(o.Timeout)); err != nil {
		return message{}, err
	}
	if o.PingPong {
		peer, err := swapText(conn, e.own)
		if err == nil {
			_, err = conn.Write([]byte(done))
		}
		return message{Endpoint: &peer}, err
	}
	if err := say(conn, message{Kind: kind, Size: e.size, Endpoint: &e.own}); err != nil {
		return message{}, err
	}
	return hear(conn)
}

// complaint is what a server said after the exchange, if it did: why its end broke.
func complaint(conn net.Conn) string {
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	var m message
	line, _ := bufio.NewReader(io.LimitReader(conn, longest)).ReadBytes('\n')
	if json.Unmarshal(line, &m) != nil {
		return ""
	}
	if m.Error == "" {
		return ""
	}
	return fmt.Sprintf("%.400q", m.Error) // of another host, and for a terminal
}

// An endpoint of ibv_rc_pingpong and its like: LID, QP number, PSN and GID in hexadecimal, and a NUL.
const (
	textForm   = "%04x:%06x:%06x:%x\x00"
	textLength = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	done       = "done\x00"
)

func putText(e rdma.Endpoint) []byte {
	return fmt.Appendf(nil, textForm, e.LID, e.QPNum, e.PSN, e.GID.Raw()[:])
}

func getText(b []byte) (e rdma.Endpoint, err error) {
	text, _, _ := strings.Cut(string(b), "\x00")
	fields := strings.Split(text, ":")
	if len(fields) != 4 || len(fields[3]) != 32 {
		return e, fmt.Errorf("the peer sent %q, which is no endpoint of ibv_rc_pingpong or its like", text)
	}
	var n [3]uint64
	for i, bits := range []int{16, 24, 24} {
		if n[i], err = strconv.ParseUint(fields[i], 16, bits); err != nil {
			return e, fmt.Errorf("the peer sent %q: %w", text, err)
		}
	}
	raw, err := hex.DecodeString(fields[3])
	if err != nil {
		return e, fmt.Errorf("the peer sent %q: %w", text, err)
	}
	e = rdma.Endpoint{LID: uint16(n[0]), QPNum: uint32(n[1]), PSN: uint32(n[2]), QKey: rdma.DefaultQKey}
	copy(e.GID.Raw()[:], raw)
	if e.LID == 0 && bytes.Equal(raw, make([]byte, len(raw))) {
		return e, errors.New("the peer has neither a LID nor a GID: start it with -g and the index of one")
	}
	return e, nil
}

func swapText(conn net.Conn, own rdma.Endpoint) (rdma.Endpoint, error) {
	if _, err := conn.Write(putText(own)); err != nil {
		return rdma.Endpoint{}, err
	}
	b := make([]byte, textLength)
	if _, err := io.ReadFull(conn, b); err != nil {
		return rdma.Endpoint{}, fmt.Errorf("the peer closed the connection early; is it ibv_rc_pingpong or "+
			"ibv_ud_pingpong, with -g? %w", err)
	}
	return getText(b)
}
