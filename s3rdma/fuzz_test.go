// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzToken checks that an accepted token has only one text.
func FuzzToken(f *testing.F) {
	f.Add(strings.Repeat("0", 2*tokenBytes))
	f.Add("01" + strings.Repeat("0", 2*tokenBytes-2))
	f.Add(token{transport: transportRC, qpn: 0x12, rkey: 3, address: 1 << 60, length: 9, port: 1, lid: 7}.String())
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseToken(text)
		if err == nil && parsed.String() != strings.ToLower(text) {
			t.Errorf("%q became %q", text, parsed)
		}
	})
}

// FuzzPrepare checks that an accepted prepare request has only one meaning, and that its replay stays on the host.
func FuzzPrepare(f *testing.F) {
	f.Add("GET", "/bucket/key?versionId=1", "100", "0", strings.Repeat("0", 2*tokenBytes), "000001", "00000001")
	f.Add("PUT", "/b/%2e%2e//k", "2147483647", "9", "01"+strings.Repeat("1", 2*tokenBytes-2), "ffffff", "FFFFFFFF")
	f.Fuzz(func(t *testing.T, op, target, size, offset, identity, psn, cookie string) {
		h := http.Header{}
		for name, value := range map[string]string{headerOp: op, headerTarget: target, headerSize: size,
			headerOffset: offset, headerToken: identity, headerPSN: psn, headerCookie: cookie} {
			h.Set(name, value)
		}
		r, err := requestOf(h)
		if err != nil {
			return
		}
		again := http.Header{}
		r.set(again)
		if same, err := requestOf(again); err != nil || same != r {
			t.Errorf("%+v became %+v, %v", r, same, err)
		}
		if r.size < 1 || r.size > maxSize || r.psn == 0 || r.cookie == 0 {
			t.Errorf("%+v", r)
		}
		control := httptest.NewRequest(http.MethodPost, pathPrepare, nil)
		control.Header = h
		replay, err := replayOf(control, r)
		if err != nil {
			return
		}
		if replay.URL.Host != "" || replay.Host != control.Host || !strings.HasPrefix(replay.URL.Path, "/") {
			t.Errorf("%q is replayed to %v at %q", target, replay.URL, replay.Host)
		}
		for name := range replay.Header {
			if strings.HasPrefix(name, headerPrefix) {
				t.Errorf("%s is replayed", name)
			}
		}
	})
}

// FuzzMemoryKey checks that an accepted key has only one meaning.
func FuzzMemoryKey(f *testing.F) {
	f.Add("000001", "0", "ffffffff")
	f.Fuzz(func(t *testing.T, qpn, address, rkey string) {
		h := http.Header{headerQPN: {qpn}, headerAddress: {address}, headerRKey: {rkey}}
		k, err := memoryKeyOf(h)
		if err != nil {
			return
		}
		again := http.Header{}
		k.set(again)
		if same, err := memoryKeyOf(again); err != nil || same != k {
			t.Errorf("%+v became %+v, %v", k, same, err)
		}
	})
}

// FuzzReply checks that an accepted reply describes a queue pair and memory and has only one meaning.
func FuzzReply(f *testing.F) {
	f.Add("200:"+strings.Repeat("0", 2*tokenBytes), "000001", "000012", "0000000000001000", "00000007")
	f.Add("200:"+token{transport: transportRC, qpn: 0x12, rkey: 3, length: 9, port: 1}.String(), "ffffff", "12", "0", "F")
	f.Add("501", "", "", "", "")
	f.Fuzz(func(t *testing.T, text, psn, qpn, address, rkey string) {
		h := http.Header{headerReply: {text}, headerPSN: {psn}, headerQPN: {qpn}, headerAddress: {address},
			headerRKey: {rkey}}
		r, err := replyOf(h)
		if err != nil {
			return
		}
		if r.psn > 0xffffff || r.memory.qpn > 0xffffff || r.server.qpn > 0xffffff {
			t.Errorf("%+v", r)
		}
		again := http.Header{headerReply: {"200:" + r.server.String()}, headerPSN: {fmt.Sprintf("%06x", r.psn)}}
		r.memory.set(again)
		if same, err := replyOf(again); err != nil || same != r {
			t.Errorf("%+v became %+v, %v", r, same, err)
		}
	})
}
