// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"strconv"
	"sync"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// HandlerOptions configure a [Handler]. Only Device is required.
type HandlerOptions struct {
	Device *rdma.Device // must stay open until the handler is closed

	MaxObject            int   // maximum bytes of a transfer; 0 means 1 GiB
	MaxStaged            int64 // maximum bytes of all transfers; 0 means 4 GiB
	MaxSessions          int   // maximum concurrent transfers; 0 means 64
	MaxSessionsPerClient int   // maximum concurrent transfers of an access key; 0 means MaxSessions
	Idle                 int64 // maximum bytes of idle memory kept for later transfers; 0 means 64 MiB

	// SessionLifetime limits the time from prepare to ready; 0 means 10 s. TransferTimeout limits the time of a
	// transfer; 0 means 30 s.
	SessionLifetime, TransferTimeout time.Duration

	// Authorize verifies the signature of a control request or of a direct request. replay is the request that the S3
	// server will receive, or nil if there is none; for a direct request it is the same as control. Authorize may
	// return a changed replay, for example with a context that marks it as authenticated. If it returns an error, a
	// control request is rejected with status 403, and a direct request is declined.
	//
	// Without Authorize, signatures of control requests are not verified. The S3 server verifies the signature of the
	// replay: the original request of a [Transport], or a request with the headers of the control request, which are
	// signed for another path.
	Authorize func(control, replay *http.Request) (*http.Request, error)

	// Direct also accepts the direct protocol, hipObject's first protocol, in which a transfer is a single request.
	Direct bool

	// Dynamic accepts requests with tokens for dynamic connections, in the format of NVIDIA's cuObject, on mlx5 devices
	// and software devices.
	Dynamic bool

	Log *slog.Logger // transfers at level debug, declined requests at info, device failures at error; or nil
}

// Handler wraps an S3 server and transfers objects by RDMA. It passes other requests to the server.
type Handler struct {
	inner   http.Handler
	options HandlerOptions
	engine  *engine

	mu       sync.Mutex
	sessions map[string]*session
	clients  map[owner]int // number of sessions by client
	lanes    map[laneKey]*lane
	starters []*lane // unused initiators of dynamic connections
	stats    HandlerStats
	draining bool // rejects new sessions
	over     bool
	running  sync.WaitGroup // control requests, and sessions that are expiring
}

// HandlerStats has a handler's counters of transfers since its creation, and of those in progress.
type HandlerStats struct {
	Puts, Gets         uint64 // by RDMA
	PutBytes, GetBytes uint64
	Expired            uint64            // sessions that were prepared but never started
	Declined           map[string]uint64 // declined control requests by reason, one of [Reasons]
	Sessions           int               // transfers that are prepared or in progress
	Staged             int64             // bytes of their memory
	Discarded          int               // transfers whose memory is not reused because its key could not be revoked
}

// Reasons lists the reasons for declining control requests.
var Reasons = []string{"authorization", "busy", "closing", "cookie", "device", "limit", "malformed", "object",
	"protocol", "session", "size", "timeout"}

// NewHandler returns a handler that wraps an S3 server. Close it to release its memory.
func NewHandler(inner http.Handler, o HandlerOptions) (*Handler, error) {
	setDefault(&o.MaxObject, 1<<30)
	setDefault(&o.MaxStaged, 4<<30)
	setDefault(&o.MaxSessions, 64)
	setDefault(&o.MaxSessionsPerClient, o.MaxSessions)
	setDefault(&o.Idle, 64<<20)
	setDefault(&o.SessionLifetime, sessionLifetime)
	setDefault(&o.TransferTimeout, transferTimeout)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	links := o.MaxSessions
	if o.Direct {
		links *= 2
	}
	if o.Dynamic {
		links += o.MaxSessions
	}
	e, err := newEngine(o.Device, links, o.Idle)
	if err != nil {
		return nil, err
	}
	return &Handler{inner: inner, options: o, engine: e, sessions: map[string]*session{}, clients: map[owner]int{},
		lanes: map[laneKey]*lane{}, stats: HandlerStats{Declined: map[string]uint64{}}}, nil
}

// setDefault sets an option that is not positive to its default.
func setDefault[T ~int | ~int64](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

// Shutdown rejects new transfers, waits until current ones have ended or ctx ends, and closes the handler.
func (h *Handler) Shutdown(ctx context.Context) error {
	h.mu.Lock()
	h.draining = true
	h.mu.Unlock()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for h.Sessions() > 0 && ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return h.Close()
}

// Close ends all transfers and waits for their requests. Afterwards, the handler passes every request to the S3 server.
// Close fails if memory cannot be released because its key still cannot be revoked.
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
	for _, l := range h.lanes { // not in use any more
		h.closeLink(l.link)
	}
	for _, l := range h.starters {
		h.closeLink(l.link)
	}
	return h.engine.close()
}

// Sessions returns the number of transfers that are prepared or in progress.
func (h *Handler) Sessions() int { return h.Stats().Sessions }

// Stats returns the handler's counters.
func (h *Handler) Stats() HandlerStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.stats
	all.Declined = maps.Clone(all.Declined)
	all.Discarded = h.engine.discarded()
	return all
}

// ServeHTTP serves control requests, and passes all others to the S3 server.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	serve := map[string]func(http.ResponseWriter, *http.Request) error{
		pathPrepare: h.prepare, pathReady: h.ready, pathCancel: h.abandon}[r.URL.Path]
	if r.Header.Get(headerToken) != "" && (r.Method == http.MethodGet || r.Method == http.MethodPut) {
		h.direct(w, r)
		return
	}
	if serve == nil || r.Method != http.MethodPost || !h.enter() {
		h.inner.ServeHTTP(w, r)
		return
	}
	defer h.running.Done()
	w.Header().Set(headerProtocol, protocolV2)
	var err error
	if protocol := r.Header.Get(headerProtocol); protocol != protocolV2 {
		w.Header().Set(headerStatus, "unsupported")
		err = failed(http.StatusNotImplemented, "protocol", "unsupported protocol %q", protocol)
	} else {
		err = serve(w, r)
	}
	if err == nil {
		return
	}
	http.Error(w, err.Error(), h.declined(r, err).status)
}

// declined counts and logs a declined request, and returns its status.
func (h *Handler) declined(r *http.Request, err error) *statusError {
	known := &statusError{http.StatusInternalServerError, "device", err}
	errors.As(err, &known)
	h.mu.Lock()
	h.stats.Declined[known.reason]++
	h.mu.Unlock()
	level := slog.LevelInfo
	if known.reason == "device" {
		level = slog.LevelError
	}
	h.options.Log.Log(r.Context(), level, "declined", "request", path.Base(r.URL.Path), "client", r.RemoteAddr, "reason",
		known.reason, "error", err)
	return known
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

// statusError is an error with an HTTP status, and a reason for the counters.
type statusError struct {
	status int
	reason string
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func failed(status int, reason, format string, args ...any) error {
	return &statusError{status, reason, fmt.Errorf("s3rdma: "+format, args...)}
}

func malformed(err error) error { return &statusError{http.StatusBadRequest, "malformed", err} }

// prepare serves a prepare request: it creates a session.
func (h *Handler) prepare(w http.ResponseWriter, r *http.Request) error {
	asked, err := requestOf(r.Header)
	if errors.Is(err, errTransport) { // clients take it as a server without the protocol, not as their mistake
		w.Header().Set(headerStatus, "unsupported")
		return err
	}
	if err != nil {
		return malformed(err)
	}
	replay, err := replayOf(r, asked)
	if err != nil {
		return malformed(err)
	}
	if replay, err = h.authorize(r, replay); err != nil {
		return err
	}
	if asked.size > h.options.MaxObject {
		return failed(http.StatusRequestEntityTooLarge, "size", "%d bytes; the limit is %d", asked.size,
			h.options.MaxObject)
	}
	s := &session{request: asked, owner: ownerOf(r)}
	if err := h.admit(s); err != nil {
		return err
	}
	kept := false
	defer func() { // runs even if the S3 server panics
		if !kept {
			h.finish(s)
		}
	}()
	if s.memory, err = h.engine.pool.get(s.size); err != nil {
		return &statusError{http.StatusServiceUnavailable, "device", err}
	}
	if s.op == http.MethodGet {
		if err := h.stage(s, replay); err != nil {
			return err
		}
	} else {
		// The replay outlives this request, so it needs a context that is not canceled. The values remain.
		s.replay = replay.WithContext(context.WithoutCancel(replay.Context()))
	}
	if s.link, err = h.engine.newLink(s.memory, s.size, s.op == http.MethodPut); err != nil {
		return &statusError{http.StatusServiceUnavailable, "device", err}
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
		return failed(http.StatusServiceUnavailable, "closing", "the server is closing")
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

// authorize calls Options.Authorize.
func (h *Handler) authorize(control, replay *http.Request) (*http.Request, error) {
	if h.options.Authorize == nil {
		return replay, nil
	}
	changed, err := h.options.Authorize(control, replay)
	if err != nil {
		return nil, &statusError{http.StatusForbidden, "authorization", err}
	}
	if changed == nil {
		changed = replay
	}
	return changed, nil
}

// admit counts a session, or returns an error if a limit is reached.
func (h *Handler) admit(s *session) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch o, now := &h.options, &h.stats; {
	case h.draining || h.over:
		return failed(http.StatusServiceUnavailable, "closing", "the server is closing")
	case now.Sessions >= o.MaxSessions:
		return failed(http.StatusServiceUnavailable, "limit", "%d transfers in progress", now.Sessions)
	case h.clients[s.owner] >= o.MaxSessionsPerClient:
		return failed(http.StatusServiceUnavailable, "limit", "%d transfers of the client in progress",
			h.clients[s.owner])
	case now.Staged+int64(s.size) > o.MaxStaged:
		return failed(http.StatusServiceUnavailable, "limit", "%d bytes staged", now.Staged)
	}
	h.clients[s.owner]++
	h.stats.Sessions++
	h.stats.Staged += int64(s.size)
	return nil
}

// take removes an expired session from the table unless it is busy. It reports whether the caller now owns the session,
// and must call running.Done.
func (h *Handler) take(s *session) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sessions[s.id] != s || s.busy {
		return false
	}
	delete(h.sessions, s.id)
	h.stats.Expired++
	h.running.Add(1)
	return true
}

// finish releases the session's objects. The caller owns the session.
func (h *Handler) finish(s *session) {
	if s.expiry != nil {
		s.expiry.Stop()
	}
	if err := s.revoke(); err != nil {
		h.options.Log.Error("memory is discarded", "bytes", s.size, "error", err)
	}
	if s.memory != nil {
		h.engine.pool.put(s.memory)
	}
	h.leave(s)
}

// leave undoes admit.
func (h *Handler) leave(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stats.Sessions--
	h.stats.Staged -= int64(s.size)
	if h.clients[s.owner]--; h.clients[s.owner] == 0 {
		delete(h.clients, s.owner)
	}
}

// serve passes a replayed request to the S3 server and records the response.
func (h *Handler) serve(into *recorder, replay *http.Request) (err error) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler { // for example by a reverse proxy that fails to copy a body
			err = failed(http.StatusBadGateway, "object", "the S3 server aborted its response")
		} else if p != nil {
			panic(p)
		}
	}()
	h.inner.ServeHTTP(into, replay)
	return nil
}

// stage gets the object from the S3 server into the session's memory.
func (h *Handler) stage(s *session, replay *http.Request) error {
	into := &recorder{header: http.Header{}, body: s.memory.Bytes()[:0:s.size]}
	if err := h.serve(into, replay); err != nil && !into.lost {
		return err
	}
	switch status := into.code(); {
	case status >= 400 && status < 500:
		return failed(status, "object", "S3 server: status %d", status)
	case status != http.StatusOK && status != http.StatusPartialContent:
		return failed(http.StatusBadGateway, "object", "S3 server: status %d", status)
	case status == http.StatusOK && s.offset != 0:
		return failed(http.StatusRequestedRangeNotSatisfiable, "object", "the S3 server returned no range")
	case into.lost || len(into.body) != s.size:
		return failed(http.StatusRequestedRangeNotSatisfiable, "object", "the object's size differs")
	}
	s.header = into.header
	return nil
}

// ready serves a ready request: it transfers the payload and ends the session.
func (h *Handler) ready(w http.ResponseWriter, r *http.Request) error {
	began := time.Now()
	key, err := memoryKeyOf(r.Header)
	if err != nil {
		return malformed(err)
	}
	cookie, err := hexHeader(r.Header, headerCookie, 8)
	if err != nil {
		return malformed(err)
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
		return &statusError{http.StatusForbidden, "cookie", err}
	case err != nil && ctx.Err() != nil:
		return failed(http.StatusRequestTimeout, "timeout", "transfer: %w", ctx.Err())
	case err != nil:
		return err
	}
	if err := s.revoke(); err != nil {
		return failed(http.StatusInternalServerError, "device", "revoke the key: %w", err)
	}

	header, status, body := s.header, http.StatusOK, []byte(nil)
	if s.op == http.MethodPut {
		// The body is the staged memory. The client can no longer change it.
		staged := s.memory.Bytes()[:s.size]
		s.replay.Body = io.NopCloser(bytes.NewReader(staged))
		into := &recorder{header: http.Header{}, body: make([]byte, 0, 64<<10)}
		if err := h.serve(into, s.replay); err != nil {
			return err
		}
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
		h.count(s)
		h.options.Log.Debug("transferred", "op", s.op, "target", s.target, "bytes", s.size, "client", r.RemoteAddr,
			"time", time.Since(began))
	}
	w.WriteHeader(status)
	w.Write(body)
	return nil
}

// count counts a completed transfer.
func (h *Handler) count(s *session) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.op == http.MethodPut {
		h.stats.Puts++
		h.stats.PutBytes += uint64(s.size)
	} else {
		h.stats.Gets++
		h.stats.GetBytes += uint64(s.size)
	}
}

// begin marks a session as busy.
func (h *Handler) begin(r *http.Request, cookie uint32, cancel context.CancelFunc) (*session, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[r.Header.Get(headerSession)]
	switch {
	case s == nil || s.owner != ownerOf(r):
		return nil, failed(http.StatusConflict, "session", "unknown session")
	case s.cookie != cookie:
		return nil, failed(http.StatusForbidden, "cookie", "wrong cookie")
	case s.busy || h.over:
		return nil, failed(http.StatusConflict, "busy", "the session is busy")
	}
	s.busy, s.cancel = true, cancel
	return s, nil
}

// abandon serves a cancel request: it ends the session, if any.
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
