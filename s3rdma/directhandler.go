// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

// The direct protocol is hipObject's first protocol. An ordinary S3 request contains a token for the client's memory,
// and the server reads (PUT) or writes (GET) that memory before it replies. The client's queue pair must already be
// connected to the server's, but the client learns the server's queue pair only from the reply. Therefore the server
// declines the first request of a queue pair and replies with its own token, and both sides keep the queue pairs
// connected for later requests: a lane. BenchmarkProtocols compares the protocols.

// headerLane contains the server's token in the reply to a lane's first request. It is our extension.
const headerLane = "X-Goverbs-Lane"

// lane is the server's side of a pair of queue pairs. Only one request at a time uses it.
type lane struct {
	key   laneKey
	link  *link
	token token
	busy  bool
	used  time.Time
}

// laneKey identifies a client's queue pair.
type laneKey struct {
	owner owner
	gid   ibv.GID
	lid   uint16
	qpn   uint32
}

// direct serves a GET or PUT with a token. If it cannot transfer the payload by RDMA, it serves a GET by HTTP, and does
// not store the object of a PUT.
func (h *Handler) direct(w http.ResponseWriter, r *http.Request) {
	peer, err := parseDirect(r.Header.Get(headerToken))
	if err == nil {
		if err = h.tryDirect(w, r, peer); err == nil {
			return
		}
	}
	known := h.declined(r, err)
	switch {
	case errors.Is(err, errToken):
		http.Error(w, err.Error(), known.status)
	case r.Method == http.MethodPut:
		w.Header().Set(headerReply, "501")
		w.WriteHeader(http.StatusOK)
	default:
		w.Header().Set(headerReply, "501")
		h.inner.ServeHTTP(w, r)
	}
}

// tryDirect transfers the payload and replies. If it returns an error, it has not replied.
func (h *Handler) tryDirect(w http.ResponseWriter, r *http.Request, peer token) error {
	if !h.enter() {
		return failed(http.StatusNotImplemented, "closing", "the server is closing")
	}
	defer h.running.Done()
	switch {
	case peer.transport == transportRC && !h.options.Direct, peer.transport == transportDC && !h.options.Dynamic:
		return failed(http.StatusNotImplemented, "protocol", "the direct protocol is not enabled")
	case peer.length > uint64(min(h.options.MaxObject, maxSize)):
		return failed(http.StatusNotImplemented, "size", "%d bytes; the limit is %d", peer.length, h.options.MaxObject)
	case r.Method == http.MethodPut && r.ContentLength != 0:
		return failed(http.StatusNotImplemented, "malformed", "PUT has both a token and a body")
	}
	r, err := h.authorize(r, r)
	if err != nil {
		return err
	}
	s := &session{request: request{op: r.Method, target: r.URL.Path, size: int(peer.length)}, owner: ownerOf(r)}
	if err := h.admit(s); err != nil {
		return err
	}
	defer h.leave(s)
	memory, err := h.engine.pool.get(s.size)
	if err != nil {
		return &statusError{http.StatusNotImplemented, "device", err}
	}
	defer h.engine.pool.put(memory)
	l, err := h.takeLane(w, s.owner, peer)
	if err != nil {
		return err
	}
	intact := false
	defer func() { h.returnLane(l, intact) }()
	ctx, cancel := context.WithTimeout(r.Context(), h.options.TransferTimeout)
	defer cancel()
	began := time.Now()
	if r.Method == http.MethodPut {
		intact, err = h.directPut(ctx, w, r, s, l, peer, memory)
	} else {
		intact, err = h.directGet(ctx, w, r, s, l, peer, memory)
	}
	if err == nil && intact {
		h.options.Log.Debug("transferred", "op", s.op, "target", s.target, "bytes", s.size, "client", r.RemoteAddr,
			"time", time.Since(began))
	}
	return err
}

// directPut stores an object that it reads from the client's memory. It reports whether the lane can be reused.
func (h *Handler) directPut(ctx context.Context, w http.ResponseWriter, r *http.Request, s *session, l *lane,
	peer token, memory *rdma.Buffer) (intact bool, err error) {
	if err := l.link.register(memory, s.size, ibv.ACCESS_LOCAL_WRITE); err != nil {
		return false, &statusError{http.StatusNotImplemented, "device", err}
	}
	payload := l.link.readFrom(ctx, peer, s.size)
	defer payload.close() // even if the S3 server panics
	replay := r.Clone(r.Context())
	replay.Body = io.NopCloser(&pipeReader{p: payload, rest: memory.Bytes()[:s.size]})
	replay.ContentLength = int64(s.size)
	replay.Header.Set("Content-Length", strconv.Itoa(s.size))
	into := &recorder{header: http.Header{}, body: make([]byte, 0, 64<<10)}
	err = h.serve(into, replay)
	if failed := payload.close(); failed != nil && failed != errStopped {
		return false, &statusError{http.StatusNotImplemented, "timeout", failed}
	}
	if err := errors.Join(err, l.link.unregister()); err != nil {
		return !l.link.closed, err
	}
	if into.code() == http.StatusOK {
		h.count(s)
		into.header.Set(headerReply, l.reply(http.StatusOK))
		into.header.Set(headerTransferred, strconv.Itoa(s.size))
	}
	into.send(w)
	return true, nil
}

// directGet gets the object and writes it to the client's memory. It reports whether the lane can be reused.
func (h *Handler) directGet(ctx context.Context, w http.ResponseWriter, r *http.Request, s *session, l *lane,
	peer token, memory *rdma.Buffer) (intact bool, err error) {
	if err := l.link.register(memory, s.size, 0); err != nil {
		return false, &statusError{http.StatusNotImplemented, "device", err}
	}
	payload := l.link.writeTo(ctx, peer)
	defer payload.close() // even if the S3 server panics
	into := &recorder{header: http.Header{}, body: memory.Bytes()[:0:s.size], payload: payload}
	err = h.serve(into, r)
	if err == nil && !into.lost && into.found() {
		payload.advance(len(into.body))
	}
	sent := payload.close()
	if sent == nil {
		sent = l.link.unregister()
	}
	intact = sent == nil
	switch {
	case err != nil || into.lost:
		return intact, failed(http.StatusNotImplemented, "object", "the object exceeds the client's memory")
	case !into.found() || len(into.body) == 0: // the S3 server's error, or an empty object
		into.header.Set(headerReply, "501")
		into.send(w)
		return intact, nil
	case sent != nil:
		h.declined(r, &statusError{http.StatusNotImplemented, "timeout", sent})
		into.header.Set(headerReply, "501")
		into.send(w)
		return false, nil
	}
	s.size = len(into.body)
	h.count(s)
	into.header.Set(headerReply, l.reply(into.code()))
	into.header.Set(headerTransferred, strconv.Itoa(s.size))
	into.header.Set("Content-Length", "0")
	into.body = nil
	into.send(w)
	return true, nil
}

// move reads or writes the peer's memory from one offset to another. After an error, the link must be closed.
func (l *link) move(ctx context.Context, peer token, op ibv.WROpcode, from, to int) (err error) {
	sge := l.mr.SGE(uint64(from), uint32(to-from))
	peer.address += uint64(from)
	if l.dynamic != nil {
		err = l.postTo(peer, op, sge)
	} else {
		err = l.post(sge, func(b *rdma.SendBatch, id uint64) rdma.SendRequest {
			if op == ibv.WR_RDMA_READ {
				return b.Read(id, peer.address, peer.rkey)
			}
			return b.Write(id, peer.address, peer.rkey)
		})
	}
	if err != nil {
		return err
	}
	return l.written(ctx)
}

// takeLane returns the lane of a client's queue pair. For a new queue pair, it creates a lane, adds its token to the
// reply, and returns an error.
func (h *Handler) takeLane(w http.ResponseWriter, o owner, peer token) (*lane, error) {
	if peer.transport == transportDC {
		return h.takeStarter()
	}
	key := laneKey{o, peer.gid, peer.lid, peer.qpn}
	h.mu.Lock()
	l := h.lanes[key]
	if l != nil && l.busy {
		h.mu.Unlock()
		return nil, failed(http.StatusNotImplemented, "busy", "the queue pair is in use")
	}
	if l != nil {
		l.busy = true
		h.mu.Unlock()
		return l, nil
	}
	var oldest *lane
	for _, other := range h.lanes {
		if !other.busy && (oldest == nil || other.used.Before(oldest.used)) {
			oldest = other
		}
	}
	if len(h.lanes) < h.options.MaxSessions {
		oldest = nil
	} else if oldest == nil {
		h.mu.Unlock()
		return nil, failed(http.StatusNotImplemented, "limit", "%d queue pairs are in use", len(h.lanes))
	} else {
		delete(h.lanes, oldest.key)
	}
	l = &lane{key: key, busy: true}
	h.lanes[key] = l // reserved before the lock is released
	h.mu.Unlock()
	if oldest != nil {
		h.closeLink(oldest.link)
	}
	err := l.open(h.engine, peer)
	h.returnLane(l, err == nil)
	if err != nil {
		return nil, &statusError{http.StatusNotImplemented, "device", err}
	}
	w.Header().Set(headerLane, l.token.String())
	return nil, failed(http.StatusNotImplemented, "session", "the first request of a queue pair")
}

// open creates a queue pair and connects it to the client's.
func (l *lane) open(e *engine, peer token) (err error) {
	if l.link, err = e.newQueuePair(0); err != nil {
		return err
	}
	if l.token, err = l.link.token(); err != nil {
		return err
	}
	return l.link.connect(peer, peer.qpn, 0)
}

// returnLane releases a lane. If it is not intact, it is closed.
func (h *Handler) returnLane(l *lane, intact bool) {
	h.mu.Lock()
	l.busy, l.used = false, time.Now()
	keep := intact && !h.over
	if l.link != nil && l.link.dynamic != nil {
		if keep {
			h.starters = append(h.starters, l)
		}
	} else if !keep {
		delete(h.lanes, l.key)
	}
	h.mu.Unlock()
	if !keep {
		h.closeLink(l.link)
	}
}

// takeStarter returns an initiator of dynamic connections. Their number is limited by the limit of sessions.
func (h *Handler) takeStarter() (*lane, error) {
	h.mu.Lock()
	if n := len(h.starters); n > 0 {
		l := h.starters[n-1]
		h.starters = h.starters[:n-1]
		h.mu.Unlock()
		return l, nil
	}
	h.mu.Unlock()
	link, err := h.engine.newDynamic(false)
	if err != nil {
		return nil, &statusError{http.StatusNotImplemented, "device", err}
	}
	return &lane{link: link}, nil
}

// reply returns the reply header for a transfer. It contains the lane's token, except with dynamic connections.
func (l *lane) reply(status int) string {
	if l.link.dynamic != nil {
		return strconv.Itoa(status)
	}
	return fmt.Sprintf("%d:%s", status, l.token)
}

func (h *Handler) closeLink(l *link) {
	if l == nil {
		return
	}
	if err := l.close(); err != nil {
		h.options.Log.Error("memory is discarded", "error", err)
	}
}
