// SPDX-License-Identifier: BSD-2-Clause

// Package trace reads traces that programs write if GOVERBS_TRACE is set. [Read] parses a file into events, and
// [Explain] replays the events of one or several programs to find the cause of each failure.
package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/untrusted"
)

// Event is a line of a trace: a call, a post, or completions. Unused members are zero.
type Event struct {
	T     uint64 `json:"t"`           // nanoseconds since the start of the trace
	D     uint64 `json:"d,omitempty"` // duration in nanoseconds
	N     uint64 `json:"n,omitempty"` // number of a call; its failure refers to it
	Verb  string `json:"verb,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Error string `json:"error,omitempty"`

	QP      *uint32                    `json:"qp,omitempty"`
	ID      uint64                     `json:"id,omitempty"`
	WRs     untrusted.List[WR]         `json:"wrs,omitempty"`
	WCs     untrusted.List[Completion] `json:"wcs,omitempty"`
	Counted untrusted.List[Counter]    `json:"counters,omitempty"`

	Object  string  `json:"object,omitempty"` // object of a failed check: "QP 0x12 (RC)"
	Device  string  `json:"device,omitempty"`
	Type    string  `json:"type,omitempty"`
	State   string  `json:"state,omitempty"`
	From    string  `json:"from,omitempty"`
	Access  string  `json:"access,omitempty"`
	Event   string  `json:"event,omitempty"`
	Status  string  `json:"status,omitempty"`
	At      Address `json:"at,omitempty"`
	Bytes   uint64  `json:"bytes,omitempty"`
	LKey    uint32  `json:"lkey,omitempty"`
	RKey    uint32  `json:"rkey,omitempty"`
	Context Address `json:"context,omitempty"`
	PD      Address `json:"pd,omitempty"`
	CQ      Address `json:"cq,omitempty"`
	SendCQ  Address `json:"send_cq,omitempty"`
	RecvCQ  Address `json:"recv_cq,omitempty"`
	AH      Address `json:"ah,omitempty"`
	CMID    Address `json:"cm_id,omitempty"`
	Peer    string  `json:"address,omitempty"`     // destination or local address of an ID
	Alone   int     `json:"synchronous,omitempty"` // the ID has no event channel, so that its events are not traced
	SRQ     *uint32 `json:"srq,omitempty"`
	Depth   uint64  `json:"depth,omitempty"`
	Sends   uint64  `json:"sends,omitempty"`
	Recvs   uint64  `json:"recvs,omitempty"`
	All     uint64  `json:"signal_all,omitempty"`

	GIDs string `json:"gids,omitempty"` // separated by spaces

	DestQP      *uint32 `json:"dest_qp_num,omitempty"`
	DGID        string  `json:"dgid,omitempty"`
	QKey        *uint32 `json:"qkey,omitempty"`
	RQPSN       *uint32 `json:"rq_psn,omitempty"`
	SQPSN       *uint32 `json:"sq_psn,omitempty"`
	PKeyIndex   *uint32 `json:"pkey_index,omitempty"`
	MTU         *uint32 `json:"path_mtu,omitempty"`
	Timeout     *uint32 `json:"timeout,omitempty"`
	RetryCnt    *uint32 `json:"retry_cnt,omitempty"`
	RNRRetry    *uint32 `json:"rnr_retry,omitempty"`
	RNRTimer    *uint32 `json:"min_rnr_timer,omitempty"`
	RdAtomic    *uint32 `json:"max_rd_atomic,omitempty"`
	DestRdAtomc *uint32 `json:"max_dest_rd_atomic,omitempty"`

	Trace   int    `json:"trace,omitempty"` // format version; first line only
	Program string `json:"program,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Time    string `json:"time,omitempty"`
}

// WR is a work request.
type WR struct {
	ID     uint64              `json:"id"`
	Op     string              `json:"op,omitempty"` // sends only
	Flags  string              `json:"flags,omitempty"`
	SGEs   untrusted.List[SGE] `json:"sges,omitempty"`
	Remote Address             `json:"remote,omitempty"`
	RKey   uint32              `json:"rkey,omitempty"`
	To     uint32              `json:"to,omitempty"`
	QKey   uint32              `json:"qkey,omitempty"`
	AH     Address             `json:"ah,omitempty"`
}

// bytes returns the size of the message.
func (w *WR) bytes() (n uint64) {
	for _, s := range w.SGEs {
		n += s.Bytes
	}
	return n
}

// has reports whether a flag is set.
func (w *WR) has(flag string) bool { return has(w.Flags, flag) }

// has reports whether a flag is in a list.
func has(flags, flag string) bool {
	for f := range strings.SplitSeq(flags, "|") {
		if strings.TrimSpace(f) == flag {
			return true
		}
	}
	return false
}

// SGE is a scatter/gather entry.
type SGE struct {
	At    Address `json:"at"`
	Bytes uint64  `json:"bytes"`
	LKey  uint32  `json:"lkey"`
}

type Completion struct {
	ID     uint64 `json:"id"`
	Status string `json:"status"`
	Op     string `json:"op,omitempty"`
	QP     uint32 `json:"qp"`
	Bytes  uint64 `json:"bytes,omitempty"`
	Vendor uint64 `json:"vendor,omitempty"`
}

// Counter is a device counter.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// Address is a 64-bit number, a string in JSON.
type Address uint64

func (a Address) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "0x%x", uint64(a)), nil }

func (a *Address) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 0, 64)
	*a = Address(n)
	return err
}

// Trace is a file: the events of a program, each with its result.
type Trace struct {
	Name   string   `json:"file"`
	Head   Event    `json:"head"`
	Events []*Event `json:"events"`
}

// Read reads a file.
func Read(name string) (*Trace, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	t.Name = name
	return t, nil
}

// Limits of a trace. The longest valid line is a post of 65,535 requests.
const (
	maxLine    = 16 << 20 // bytes
	maxEvents  = 1 << 20
	maxObjects = 4 << 20 // events, requests, completions and their parts, which take more memory than text
)

// wholeLines is a bufio.SplitFunc for terminated lines.
func wholeLines(data []byte, end bool) (advance int, line []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if end {
		return len(data), nil, nil
	}
	return 0, nil, nil
}

// errNoTrace reports a file in another format.
var errNoTrace = errors.New("not a trace; run the program with goverbs trace record or GOVERBS_TRACE=FILE")

// parse parses the lines. The last one is ignored if incomplete, since the program may have died.
func parse(from io.Reader) (*Trace, error) {
	t := &Trace{}
	calls := map[uint64]*Event{}
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 1<<16), maxLine)
	lines.Split(wholeLines)
	n, objects := 1, 0
	for ; lines.Scan(); n++ {
		if objects += bytes.Count(lines.Bytes(), []byte{'{'}); objects > maxObjects {
			return nil, fmt.Errorf("line %d: more than %d requests and completions; shorten the trace", n,
				maxObjects)
		}
		e := new(Event)
		if err := json.Unmarshal(lines.Bytes(), e); err != nil {
			if n == 1 {
				return nil, errNoTrace
			}
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(t.Events) == maxEvents {
			return nil, fmt.Errorf("line %d: more than %d events; shorten the trace", n, maxEvents)
		}
		if n == 1 {
			t.Head = *e
			continue
		}
		if call := calls[e.N]; e.N != 0 && e.Verb == "" && call != nil { // failure of an earlier call
			call.Errno, call.Error = e.Errno, e.Error
			continue
		}
		if e.N != 0 {
			calls[e.N] = e
		}
		t.Events = append(t.Events, e)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("line %d has more than %d bytes: not a trace", n, maxLine)
	case err != nil:
		return nil, err
	}
	if t.Head.Trace != 1 {
		return nil, errNoTrace
	}
	return t, nil
}
