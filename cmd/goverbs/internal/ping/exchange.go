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

// message is a line of JSON in the exchange over TCP. The client sends the first one and the server answers.
type message struct {
	Kind     string         `json:"kind,omitempty"`
	Size     int            `json:"size,omitempty"`
	Endpoint *rdma.Endpoint `json:"endpoint,omitempty"`
	PKeys    []string       `json:"pkeys,omitempty"`
	Error    string         `json:"error,omitempty"`
}

// maxLine is the maximum length of a line.
const maxLine = 8 << 10

func writeMessage(w io.Writer, m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

func readMessage(r io.Reader) (m message, err error) {
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxLine), 512).ReadBytes('\n')
	if err != nil {
		if len(line) == 0 {
			return m, errors.New("peer closed the connection; check that it is goverbs serve")
		}
		return m, fmt.Errorf("unexpected data from the peer: %.40q: %w", line, err)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("unexpected data from the peer: %.40q; use the same version of goverbs on both ends", line)
	}
	if m.Error != "" {
		return m, &peerError{m.Error}
	}
	for _, key := range m.PKeys {
		if _, err := strconv.ParseUint(key, 0, 16); err != nil {
			return m, fmt.Errorf("invalid P_Key from the peer: %.40q", key)
		}
	}
	if m.Endpoint == nil {
		return m, fmt.Errorf("message from the peer lacks an endpoint: %.40q", line)
	}
	return m, nil
}

// peerError is an error that the server reported instead of an endpoint.
type peerError struct{ text string }

// Error quotes the text: it comes from another host and may be printed on a terminal.
func (e *peerError) Error() string { return fmt.Sprintf("peer: %.400q", e.text) }

// exchangeEndpoints sends the endpoint of this end and receives the peer's.
func exchangeEndpoints(conn net.Conn, o *Options, kind string, e *end) (message, error) {
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
	if err := writeMessage(conn, message{Kind: kind, Size: e.size, Endpoint: &e.own}); err != nil {
		return message{}, err
	}
	return readMessage(conn)
}

// reportedError returns the error that the server reported after the exchange, or "".
func reportedError(conn net.Conn) string {
	_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	var m message
	line, _ := bufio.NewReader(io.LimitReader(conn, maxLine)).ReadBytes('\n')
	if json.Unmarshal(line, &m) != nil {
		return ""
	}
	if m.Error == "" {
		return ""
	}
	return fmt.Sprintf("%.400q", m.Error) // quoted: it comes from another host
}

// The endpoint format of the rdma-core pingpong programs: LID, QP number, PSN and GID in hexadecimal, and a NUL.
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
		return e, fmt.Errorf("invalid pingpong endpoint from the peer: %q", text)
	}
	var n [3]uint64
	for i, bits := range []int{16, 24, 24} {
		if n[i], err = strconv.ParseUint(fields[i], 16, bits); err != nil {
			return e, fmt.Errorf("invalid pingpong endpoint from the peer: %q: %w", text, err)
		}
	}
	raw, err := hex.DecodeString(fields[3])
	if err != nil {
		return e, fmt.Errorf("invalid pingpong endpoint from the peer: %q: %w", text, err)
	}
	e = rdma.Endpoint{LID: uint16(n[0]), QPNum: uint32(n[1]), PSN: uint32(n[2]), QKey: rdma.DefaultQKey}
	copy(e.GID.Raw()[:], raw)
	if e.LID == 0 && bytes.Equal(raw, make([]byte, len(raw))) {
		return e, errors.New("peer has neither a LID nor a GID; start it with -g INDEX")
	}
	return e, nil
}

func swapText(conn net.Conn, local rdma.Endpoint) (rdma.Endpoint, error) {
	if _, err := conn.Write(putText(local)); err != nil {
		return rdma.Endpoint{}, err
	}
	b := make([]byte, textLength)
	if _, err := io.ReadFull(conn, b); err != nil {
		return rdma.Endpoint{}, fmt.Errorf("peer closed the connection early: %w; check that it is ibv_rc_pingpong -g "+
			"or ibv_ud_pingpong -g", err)
	}
	return getText(b)
}
