// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// HandlerOptions configure a [Handler]. Only Device is required.
type HandlerOptions struct {
	Device *rdma.Device // stays open until the handler is closed

	MaxObject            int   // bytes of one transfer; 1 GiB by default
	MaxStaged            int64 // bytes of all transfers; 4 GiB by default
	MaxSessions          int   // transfers at once; 64 by default
	MaxSessionsPerClient int   // transfers of one access key at once; MaxSessions by default
	Idle                 int64 // bytes of idle memory to keep for later transfers; 64 MiB by default

	// SessionLifetime is the time from prepare to ready, 10 s by default, and TransferTimeout that of a transfer, 30 s by
	// default.
	SessionLifetime, TransferTimeout time.Duration

	// Authorize verifies the signature of a control request. It may return a changed replay: the request that the S3
	// server gets in place of the client's, for example with a context that marks it as authenticated. replay is nil if
	// nothing is replayed. An error rejects the request with 403.
	//
	// Without Authorize, signatures of control requests are not verified. The S3 server verifies that of the replay: the
	// original request of a [Transport], or the headers of the control request, signed for another path.
	Authorize func(control, replay *http.Request) (*http.Request, error)
}

// Handler is an S3 server whose objects move by RDMA. It passes requests that are not its own to the server that it
// wraps.
type Handler struct {
	inner   http.Handler
	options HandlerOptions
	engine  *engine

	mu       sync.Mutex
	sessions map[string]*session
	staged   int64
	clients  map[owner]int
	over     bool
	running  sync.WaitGroup // control requests, and sessions that expire
}

// owner is a digest of a client's access key.
type owner [sha256.Size]byte

// session is a transfer between prepare and its end. Only its creator and, after begin, ready use its link and memory.
type session struct {
	request
	id     string
	owner  owner
	link   *link
	memory *rdma.Buffer
	replay *http.Request // of a PUT
	header http.Header   // of the S3 server's response to a GET
	expiry *time.Timer
	joined bool // the link is connected

	busy   bool               // ready has begun; guarded by Handler.mu
	cancel context.CancelFunc // of the transfer, if busy
}

// NewHandler wraps an S3 server. Close releases the handler's memory.
func NewHandler(inner http.Handler, o HandlerOptions) (*Handler, error) {
	setDefault(&o.MaxObject, 1<<30)
	setDefault(&o.MaxStaged, 4<<30)
	setDefault(&o.MaxSessions, 64)
	setDefault(&o.MaxSessionsPerClient, o.MaxSessions)
	setDefault(&o.Idle, 64<<20)
	setDefault(&o.SessionLifetime, sessionLifetime)
	setDefault(&o.TransferTimeout, transferTimeout)
	e, err := newEngine(o.Device, o.MaxSessions, o.Idle)
	if err != nil {
		return nil, err
	}
	return &Handler{inner: inner, options: o, engine: e, sessions: map[string]*session{}, clients: map[owner]int{}}, nil
}

// setDefault replaces an option that is not positive.
func setDefault[T ~int | ~int64](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

// Close ends all transfers and waits for their requests. The handler then passes every request to the S3 server.
func (h *Handler) Close() error {
	h.mu.Lock()
	if h.over {
		h.mu.Unlock()
		return nil
	}
	h.over = true
	var idle []*session
	for _, s := range h.sessions {
		if s.busy {
			s.cancel()
		} else {
			idle = append(idle, s)
			delete(h.sessions, s.id)
		}
	}
	h.mu.Unlock()
	for _, s := range idle {
		h.finish(s)
	}
	h.running.Wait()
	return h.engine.close()
}

// Sessions returns the number of transfers that have been prepared and have not ended.
func (h *Handler) Sessions() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, count := range h.clients {
		n += count
	}
	return n
}

// ServeHTTP answers control requests, and passes all others to the S3 server.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := map[string]func(http.ResponseWriter, *http.Request) error{
		pathPrepare: h.prepare, pathReady: h.ready, pathCancel: h.abandon}[r.URL.Path]
	if serve == nil || r.Method != http.MethodPost || !h.enter() {
		h.inner.ServeHTTP(w, r)
		return
	}
	defer h.running.Done()
	w.Header().Set(headerProtocol, protocolV2)
	var err error
	if protocol := r.Header.Get(headerProtocol); protocol != protocolV2 {
		w.Header().Set(headerStatus, "unsupported")
		err = &statusError{http.StatusNotImplemented, fmt.Errorf("s3rdma: protocol %q is not supported", protocol)}
	} else {
		err = serve(w, r)
	}
	if err == nil {
		return
	}
	status := http.StatusInternalServerError
	var known *statusError
	if errors.As(err, &known) {
		status = known.status
	}
	http.Error(w, err.Error(), status)
}

func (h *Handler) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return false
	}
	h.running.Add(1)
	return true
}

// statusError is an error with its HTTP status.
type statusError struct {
	status int
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func failed(status int, format string, args ...any) error {
	return &statusError{status, fmt.Errorf("s3rdma: "+format, args...)}
}

// prepare creates a session.
func (h *Handler) prepare(w http.ResponseWriter, r *http.Request) error {
	asked, err := requestOf(r.Header)
	if err != nil {
		return &statusError{http.StatusBadRequest, err}
	}
	replay, err := replayOf(r, asked)
	if err != nil {
		return &statusError{http.StatusBadRequest, err}
	}
	if replay, err = h.authorize(r, replay); err != nil {
		return err
	}
	if asked.size > h.options.MaxObject {
		return failed(http.StatusRequestEntityTooLarge, "%d bytes; the limit is %d", asked.size, h.options.MaxObject)
	}
	s := &session{request: asked, owner: ownerOf(r)}
	if err := h.admit(s); err != nil {
		return err
	}
	kept := false
	defer func() { // also if the S3 server panics
		if !kept {
			h.finish(s)
		}
	}()
	if s.memory, err = h.engine.pool.get(s.size); err != nil {
		return &statusError{http.StatusServiceUnavailable, err}
	}
	if s.op == http.MethodGet {
		if err := h.stage(s, replay); err != nil {
			return err
		}
	} else {
		// The request outlives this one, and so must its context. Its values remain.
		s.replay = replay.WithContext(context.WithoutCancel(replay.Context()))
	}
	if s.link, err = h.engine.newLink(s.memory, s.size, s.op == http.MethodPut); err != nil {
		return &statusError{http.StatusServiceUnavailable, err}
	}
	own, err := s.link.token()
	if err != nil {
		return err
	}
	if s.client.qpn != 0 {
		if err := s.join(s.client.qpn); err != nil {
			return err
		}
	}
	var id [16]byte
	rand.Read(id[:])
	s.id = hex.EncodeToString(id[:])
	header := w.Header()
	s.link.key().set(header)
	header.Set(headerReply, "200:"+own.String())
	header.Set(headerSession, s.id)
	header.Set(headerPSN, fmt.Sprintf("%06x", s.link.psn))
	header.Set(headerReplays, "1")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over {
		return failed(http.StatusServiceUnavailable, "the server is closing")
	}
	h.sessions[s.id] = s
	s.expiry = time.AfterFunc(h.options.SessionLifetime, func() {
		if h.take(s) {
			defer h.running.Done()
			h.finish(s)
		}
	})
	kept = true
	return nil
}

// join connects to the client's queue pair, and prepares for the client's write.
func (s *session) join(qpn uint32) error {
	if err := s.link.connect(s.client, qpn, s.psn); err != nil {
		return err
	}
	s.joined = true
	if s.op == http.MethodPut {
		return s.link.expect()
	}
	return nil
}

// authorize calls Options.Authorize.
func (h *Handler) authorize(control, replay *http.Request) (*http.Request, error) {
	if h.options.Authorize == nil {
		return replay, nil
	}
	changed, err := h.options.Authorize(control, replay)
	if err != nil {
		return nil, &statusError{http.StatusForbidden, err}
	}
	if changed == nil {
		changed = replay
	}
	return changed, nil
}

// admit counts a session, or rejects it.
func (h *Handler) admit(s *session) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	total := 0
	for _, n := range h.clients {
		total += n
	}
	switch o := &h.options; {
	case total >= o.MaxSessions:
		return failed(http.StatusServiceUnavailable, "%d transfers are under way", total)
	case h.clients[s.owner] >= o.MaxSessionsPerClient:
		return failed(http.StatusServiceUnavailable, "%d transfers of the client are under way", h.clients[s.owner])
	case h.staged+int64(s.size) > o.MaxStaged:
		return failed(http.StatusServiceUnavailable, "%d bytes are staged", h.staged)
	}
	h.clients[s.owner]++
	h.staged += int64(s.size)
	return nil
}

// take removes an expired session that is not busy from the table, and reports whether the caller now owns it. The
// caller then calls running.Done.
func (h *Handler) take(s *session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[s.id] != s || s.busy {
		return false
	}
	delete(h.sessions, s.id)
	h.running.Add(1)
	return true
}

// revoke ends the client's access to the session's memory. If that fails, the memory is never used again.
func (s *session) revoke() error {
	if s.link == nil {
		return nil
	}
	err := s.link.close()
	s.link = nil
	if err != nil {
		s.memory = nil
	}
	return err
}

// finish releases everything that the session holds. The caller owns the session.
func (h *Handler) finish(s *session) {
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.revoke()
	if s.memory != nil {
		h.engine.pool.put(s.memory)
		s.memory = nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.staged -= int64(s.size)
	if h.clients[s.owner]--; h.clients[s.owner] == 0 {
		delete(h.clients, s.owner)
	}
}

// stage gets the object from the S3 server.
func (h *Handler) stage(s *session, replay *http.Request) error {
	into := &recorder{header: http.Header{}, body: s.memory.Bytes()[:0:s.size]}
	h.inner.ServeHTTP(into, replay)
	switch {
	case into.status == http.StatusRequestedRangeNotSatisfiable || into.status == http.StatusNotFound:
		return failed(into.status, "S3 server: %s", http.StatusText(into.status))
	case into.status >= 400 && into.status < 500:
		return failed(into.status, "S3 server: status %d", into.status)
	case into.status != http.StatusOK && into.status != http.StatusPartialContent:
		return failed(http.StatusBadGateway, "S3 server: status %d", into.status)
	case into.status == http.StatusOK && s.offset != 0:
		return failed(http.StatusRequestedRangeNotSatisfiable, "S3 server: no range")
	case into.lost || len(into.body) != s.size:
		return failed(http.StatusRequestedRangeNotSatisfiable, "the object has another size")
	}
	s.header = into.header
	return nil
}

// ready transfers and ends the session.
func (h *Handler) ready(w http.ResponseWriter, r *http.Request) error {
	key, err := memoryKeyOf(r.Header)
	if err != nil {
		return &statusError{http.StatusBadRequest, err}
	}
	cookie, err := hexHeader(r.Header, headerCookie, 8)
	if err != nil {
		return &statusError{http.StatusBadRequest, err}
	}
	if _, err := h.authorize(r, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.options.TransferTimeout)
	defer cancel()
	s, err := h.begin(r, uint32(cookie), cancel)
	if err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		delete(h.sessions, s.id)
		h.mu.Unlock()
		h.finish(s)
	}()
	switch err := s.transfer(ctx, key); {
	case errors.Is(err, errCookie):
		return &statusError{http.StatusForbidden, err}
	case err != nil && ctx.Err() != nil:
		return failed(http.StatusRequestTimeout, "transfer: %w", ctx.Err())
	case err != nil:
		return err
	}
	if err := s.revoke(); err != nil {
		return failed(http.StatusInternalServerError, "revoke the key: %w", err)
	}

	header, status, body := s.header, http.StatusOK, []byte(nil)
	if s.op == http.MethodPut {
		// The body is the staged memory, which the client can no longer change.
		staged := s.memory.Bytes()[:s.size]
		s.replay.Body = io.NopCloser(bytes.NewReader(staged))
		into := &recorder{header: http.Header{}, body: make([]byte, 0, 64<<10)}
		h.inner.ServeHTTP(into, s.replay)
		header, status, body = into.header, into.code(), into.body
		for name, values := range header {
			w.Header()[name] = values
		}
		w.Header().Del("Content-Length")
	}
	w.Header().Set(headerCookie, fmt.Sprintf("%08x", s.cookie))
	if status == http.StatusOK {
		w.Header().Set(headerReply, "200")
		w.Header().Set(headerTransferred, strconv.Itoa(s.size))
		w.Header().Set(headerETag, header.Get("ETag"))
		if version := header.Get("X-Amz-Version-Id"); version != "" {
			w.Header().Set(headerVersion, version)
		}
	}
	w.WriteHeader(status)
	w.Write(body)
	return nil
}

// begin makes a session busy.
func (h *Handler) begin(r *http.Request, cookie uint32, cancel context.CancelFunc) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[r.Header.Get(headerSession)]
	switch {
	case s == nil || s.owner != ownerOf(r):
		return nil, failed(http.StatusConflict, "unknown session")
	case s.cookie != cookie:
		return nil, failed(http.StatusForbidden, "wrong cookie")
	case s.busy || h.over:
		return nil, failed(http.StatusConflict, "the session is busy")
	}
	s.busy, s.cancel = true, cancel
	return s, nil
}

func (s *session) transfer(ctx context.Context, key memoryKey) error {
	if s.joined && key.qpn != s.client.qpn {
		return failed(http.StatusBadRequest, "the queue pair differs from that of the token")
	}
	if !s.joined {
		if err := s.join(key.qpn); err != nil {
			return err
		}
	}
	if s.op == http.MethodPut {
		return s.link.arrived(ctx, s.cookie, s.size)
	}
	if err := s.link.write(key, s.cookie); err != nil {
		return err
	}
	return s.link.written(ctx)
}

// abandon ends a session, if there is one.
func (h *Handler) abandon(w http.ResponseWriter, r *http.Request) error {
	if _, err := h.authorize(r, nil); err != nil {
		return err
	}
	h.mu.Lock()
	s := h.sessions[r.Header.Get(headerSession)]
	switch {
	case s == nil || s.owner != ownerOf(r):
		s = nil
	case s.busy:
		s.cancel()
		s = nil
	default:
		delete(h.sessions, s.id)
	}
	h.mu.Unlock()
	if s != nil {
		h.finish(s)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// replayOf returns the request that the S3 server gets: the client's original one if the client sent it, and otherwise
// one with the headers of the control request that are not about RDMA.
func replayOf(control *http.Request, asked request) (*http.Request, error) {
	uri := asked.target
	if query := control.Header.Get(headerQuery); query != "" {
		uri += "?" + query
	}
	target, err := url.ParseRequestURI(uri)
	if err != nil || target.Host != "" {
		return nil, fmt.Errorf("s3rdma: %s: %q is not a path", headerTarget, asked.target)
	}
	replay := control.Clone(control.Context())
	replay.Method, replay.URL, replay.RequestURI = asked.op, target, uri
	replay.Header, replay.Body, replay.ContentLength, replay.TransferEncoding = http.Header{}, http.NoBody, 0, nil
	for name, values := range control.Header {
		if original, ok := strings.CutPrefix(name, headerOriginal); ok && original != "" {
			replay.Header[http.CanonicalHeaderKey(original)] = values
		}
	}
	if len(replay.Header) == 0 {
		for name, values := range control.Header {
			if !strings.HasPrefix(name, headerPrefix) {
				replay.Header[name] = values
			}
		}
		if asked.op == http.MethodGet {
			replay.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", asked.offset, asked.offset+uint64(asked.size)-1))
		}
	}
	if asked.op == http.MethodPut {
		replay.ContentLength = int64(asked.size)
		replay.Header.Set("Content-Length", strconv.Itoa(asked.size))
	}
	return replay, nil
}

// ownerOf returns the digest of the access key in the request's signature.
func ownerOf(r *http.Request) owner {
	_, credential, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(credential, "/")
	return sha256.Sum256([]byte(key))
}

// recorder is a ResponseWriter that keeps the body, as much as body has room for.
type recorder struct {
	header http.Header
	status int
	body   []byte
	lost   bool // there was more
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 && status >= 200 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.status = r.code()
	if len(b) > cap(r.body)-len(r.body) {
		r.lost = true
		return 0, io.ErrShortBuffer
	}
	r.body = append(r.body, b...)
	return len(b), nil
}

// code returns the status, which is 200 if the server did not set one.
func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
