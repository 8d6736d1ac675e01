// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// clientLane is the client's side of a pair of queue pairs. Only one request at a time uses it.
type clientLane struct {
	host string
	link *link
	peer token // the server's token; zero until the first reply
}

// isDirect reports whether the body of a PUT can be transferred by RDMA without changing the meaning of its headers.
func isDirect(r *http.Request) bool {
	return r.Header.Get("Content-Md5") == "" && !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") &&
		r.Header.Get("Content-Encoding") != "aws-chunked"
}

// exchange sends a request for which the server reads or writes memory. Any error means that HTTP must be used.
func (t *Transport) exchange(r *http.Request, memory *rdma.Buffer, size int) (*http.Response, error) {
	l, err := t.takeLane(r.URL.Host)
	if err != nil {
		return nil, err
	}
	for {
		first := l.peer == (token{})
		response, err := t.direct(r, l, memory, size)
		if err == nil {
			t.returnLane(l)
			return response, nil
		}
		if !first || l.peer == (token{}) || l.link.closed {
			l.link.close()
			return nil, err
		}
	}
}

// direct sends the request once. If the request connects the lane, it fails, but the next request may succeed. When
// direct returns, the server can no longer access the memory. The response's ContentLength is the number of bytes that
// the server has transferred, which for a GET may be less than size.
func (t *Transport) direct(r *http.Request, l *clientLane, memory *rdma.Buffer, size int) (*http.Response, error) {
	access := ibv.ACCESS_LOCAL_WRITE | ibv.ACCESS_REMOTE_WRITE
	if r.Method == http.MethodPut {
		access = ibv.ACCESS_REMOTE_READ
	}
	if err := l.link.register(memory, size, access); err != nil {
		l.link.close()
		return nil, err
	}
	response, err := t.sendDirect(r, l)
	if err != nil {
		l.link.close()
		return nil, err
	}
	if err := l.link.unregister(); err != nil {
		response.Body.Close()
		return nil, err
	}
	h := response.Header
	status, text, _ := strings.Cut(h.Get(headerReply), ":")
	moved := size // cuObject's servers send no size for a PUT
	if text := h.Get(headerTransferred); text != "" || r.Method == http.MethodGet {
		moved, _ = strconv.Atoi(text)
	}
	// Only the lane's queue pair can have accessed the memory.
	peer, err := parseToken(text)
	if reached := l.link.dynamic != nil || err == nil && l.peer != (token{}) && peer == l.peer; reached &&
		status == strconv.Itoa(response.StatusCode) && moved > 0 && moved <= size &&
		(moved == size || r.Method == http.MethodGet) {
		io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
		response.Body.Close()
		for name := range h {
			if strings.HasPrefix(name, headerPrefix) {
				delete(h, name)
			}
		}
		response.Request, response.ContentLength = r, int64(moved)
		h.Set("Content-Length", strconv.Itoa(moved))
		return response, nil
	}
	response.Body.Close()
	if response.StatusCode == http.StatusOK && h.Get(headerReply) == "" && response.ContentLength != 0 { // the server has ignored the token
		t.decline(r.URL.Host)
	}
	if l.peer == (token{}) && l.link.dynamic == nil {
		if peer, err := parseToken(h.Get(headerLane)); err == nil && l.link.connect(peer, peer.qpn, 0) == nil {
			l.peer = peer
		}
	}
	return nil, errDeclined
}

func (t *Transport) sendDirect(r *http.Request, l *clientLane) (*http.Response, error) {
	own, err := l.link.token()
	if err != nil {
		return nil, err
	}
	q := r.Clone(r.Context())
	q.Body, q.GetBody, q.ContentLength = http.NoBody, nil, 0
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "Expect", "Content-Length"} {
		q.Header.Del(name)
	}
	q.Header.Set("X-Amz-Content-Sha256", unsigned)
	text := own.String()
	if l.link.dynamic != nil {
		text = own.dynamicText()
	}
	q.Header.Set(headerToken, text)
	if err := t.options.Signer.Sign(r.Context(), q); err != nil {
		return nil, err
	}
	return t.base.RoundTrip(q)
}

// putDirect sends a PUT.
func (t *Transport) putDirect(r *http.Request, memory *rdma.Buffer, size int) (*http.Response, error) {
	if err := readBody(r, memory.Bytes()[:size]); err != nil {
		t.engine.pool.put(memory)
		return nil, err
	}
	response, err := t.exchange(r, memory, size)
	if err != nil {
		return t.again(r, memory, size)
	}
	t.engine.pool.put(memory)
	t.puts.Add(1)
	response.Body, response.ContentLength = http.NoBody, 0
	response.Header.Set("Content-Length", "0")
	return response, nil
}

// takeLane returns an unused lane, or a new one.
func (t *Transport) takeLane(host string) (*clientLane, error) {
	t.mu.Lock()
	if idle := t.lanes[host]; len(idle) > 0 {
		l := idle[len(idle)-1]
		t.lanes[host] = idle[:len(idle)-1]
		t.mu.Unlock()
		return l, nil
	}
	t.mu.Unlock()
	var link *link
	var err error
	if t.options.Dynamic {
		link, err = t.engine.newDynamic(true)
	} else {
		link, err = t.engine.newQueuePair(0)
	}
	if err != nil {
		return nil, fmt.Errorf("s3rdma: lane: %w", err)
	}
	return &clientLane{host: host, link: link}, nil
}

func (t *Transport) returnLane(l *clientLane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lanes[l.host] = append(t.lanes[l.host], l)
}

// closeLanes closes all lanes. None is in use.
func (t *Transport) closeLanes() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, idle := range t.lanes {
		for _, l := range idle {
			l.link.close() // the engine's close reports the error
		}
	}
	t.lanes = nil
}
