// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// Options configure a [Transport]. Device and Signer are required.
type Options struct {
	Device *rdma.Device // must stay open until the transport is closed
	Signer Signer

	Threshold int   // minimum payload, or range of a direct GET, for RDMA in bytes; 0 means 1 MiB
	Transfers int   // maximum concurrent transfers by RDMA; others use HTTP; 0 means 64
	Idle      int64 // maximum bytes of idle memory kept for later transfers; 0 means 64 MiB

	// Foreign permits servers that do not use this package. They do not store the headers of a PUT, so RDMA is used
	// only for requests whose headers do not matter. URLs must have path style: https://host/bucket/key.
	Foreign bool

	// Direct uses the direct protocol, hipObject's first protocol, instead of hipobj-rc-v2. A transfer is one request,
	// on queue pairs that both sides keep. The server reads the body of a PUT from the client's memory. Requests whose
	// body is signed in chunks use HTTP.
	Direct bool

	// Dynamic sends the same requests as Direct, which it implies, but with dynamic connections and the tokens of
	// NVIDIA's cuObject, on mlx5 devices and software devices.
	Dynamic bool

	// RetryAfter is how long HTTP is used for a host that has declined the protocol; 0 means 1 min.
	RetryAfter time.Duration
	// TransferTimeout limits the time of a transfer; 0 means 30 s.
	TransferTimeout time.Duration
}

// Signer signs requests for service s3 with SigV4. The header X-Amz-Content-Sha256 contains the payload hash.
type Signer interface {
	Sign(ctx context.Context, r *http.Request) error
}

// SignerFunc is a [Signer] that calls the function.
type SignerFunc func(ctx context.Context, r *http.Request) error

// Sign calls f.
func (f SignerFunc) Sign(ctx context.Context, r *http.Request) error { return f(ctx, r) }

// Stats has counters of requests.
type Stats struct {
	Puts, Gets uint64 // requests by RDMA
	Declined   uint64 // requests by HTTP that RDMA could have transferred
	Discarded  uint64 // transfers whose memory is not reused because its key could not be revoked
}

// Transport is an [http.RoundTripper] for S3 clients. It is safe for concurrent use.
type Transport struct {
	base    http.RoundTripper
	options Options
	engine  *engine
	places  chan struct{} // limits concurrent transfers

	mu       sync.Mutex
	declined map[string]time.Time     // by host: when to try RDMA again
	lanes    map[string][]*clientLane // by host: unused lanes
	over     bool
	running  sync.WaitGroup // transfers, responses with memory, and cancel requests in progress

	puts, gets, byHTTP atomic.Uint64
}

// NewTransport returns a Transport that wraps the HTTP transport of an S3 client. Close it to release its memory.
func NewTransport(base http.RoundTripper, o Options) (*Transport, error) {
	if o.Signer == nil {
		return nil, errors.New("s3rdma: Options.Signer is nil")
	}
	if base == nil {
		base = http.DefaultTransport
	}
	setDefault(&o.Threshold, 1<<20)
	setDefault(&o.Transfers, 64)
	setDefault(&o.Idle, 64<<20)
	setDefault(&o.RetryAfter, time.Minute)
	setDefault(&o.TransferTimeout, transferTimeout)
	o.Direct = o.Direct || o.Dynamic
	links := o.Transfers
	if o.Direct {
		links *= 2
	}
	e, err := newEngine(o.Device, links, o.Idle)
	if err != nil {
		return nil, err
	}
	return &Transport{base: base, options: o, engine: e, places: make(chan struct{}, o.Transfers),
		declined: map[string]time.Time{}, lanes: map[string][]*clientLane{}}, nil
}

// Close waits for transfers in progress, and until the bodies of all responses are closed. Later requests use HTTP.
// Close fails if memory cannot be released because its key still cannot be revoked.
func (t *Transport) Close() error {
	t.mu.Lock()
	over := t.over
	t.over = true
	t.mu.Unlock()
	if over {
		return nil
	}
	t.running.Wait()
	t.closeLanes()
	return t.engine.close()
}

// Stats returns the transport's counters.
func (t *Transport) Stats() Stats {
	return Stats{t.puts.Load(), t.gets.Load(), t.byHTTP.Load(), uint64(t.engine.discarded())}
}

// RoundTrip sends the request. It transfers the payload by RDMA if possible.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if b := bufferOf(r.Context(), 0); b != nil && r.Method == http.MethodGet {
		if b.busy.Load() {
			return nil, errBusy
		}
		b.filled.Store(0) // an earlier response may not have been read
	}
	if !t.eligible(r) || !t.enter() {
		return t.base.RoundTrip(r)
	}
	defer t.running.Done()
	select {
	case t.places <- struct{}{}:
	default:
		t.byHTTP.Add(1)
		return t.base.RoundTrip(r)
	}
	defer func() { <-t.places }()
	if r.Method == http.MethodPut {
		return t.put(r)
	}
	return t.get(r)
}

func (t *Transport) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	t.running.Add(1)
	return true
}

// eligible reports whether RDMA may be used for a request.
func (t *Transport) eligible(r *http.Request) bool {
	switch r.Method {
	case http.MethodPut:
		if t.options.Direct && !isDirect(r) || r.Body == nil || r.ContentLength < int64(t.options.Threshold) || r.ContentLength < 1 ||
			r.ContentLength > maxSize || len(r.TransferEncoding) > 0 || r.Header.Get("X-Amz-Copy-Source") != "" {
			return false
		}
	case http.MethodGet:
		if r.Body != nil && r.Body != http.NoBody {
			return false
		}
	default:
		return false
	}
	if len(r.URL.Path) < 2 || r.Header.Get("Authorization") == "" {
		return false // a list of buckets, or a presigned or anonymous request
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return false
	}
	for name := range query {
		switch name {
		case "x-id", "versionId":
		case "partNumber", "uploadId":
			if r.Method != http.MethodPut {
				return false
			}
		default:
			return false
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	again, ok := t.declined[r.URL.Host]
	if ok && time.Now().After(again) {
		delete(t.declined, r.URL.Host)
		ok = false
	}
	return !ok
}

// errDeclined means that HTTP must be used.
var errDeclined = errors.New("s3rdma: declined")

// put sends a PUT. It does not read the body before the server has accepted the transfer.
func (t *Transport) put(r *http.Request) (*http.Response, error) {
	size := int(r.ContentLength)
	memory, err := t.engine.pool.get(size)
	if err != nil {
		t.byHTTP.Add(1)
		return t.base.RoundTrip(r)
	}
	if t.options.Direct {
		return t.putDirect(r, memory, size)
	}
	x, err := t.prepare(r, http.MethodPut, memory, size, 0)
	if err != nil {
		t.engine.pool.put(memory)
		t.byHTTP.Add(1)
		return t.base.RoundTrip(r)
	}
	if err := readBody(r, memory.Bytes()[:size]); err != nil {
		x.abandon()
		t.engine.pool.put(memory)
		return nil, err
	}
	response, err := x.put()
	if err == nil {
		t.engine.pool.put(memory)
		t.puts.Add(1)
		return response, nil
	}
	x.abandon()
	return t.again(r, memory, size)
}

// readBody reads and closes a body, which must have exactly this length.
func readBody(r *http.Request, payload []byte) error {
	defer r.Body.Close()
	if _, err := io.ReadFull(r.Body, payload); err != nil {
		return err
	}
	// Read the end, too: the SDK's readers then check the size and compute trailers.
	var more [1]byte
	if n, err := r.Body.Read(more[:]); n > 0 {
		return fmt.Errorf("s3rdma: the body exceeds %d bytes", len(payload))
	} else if err != nil && err != io.EOF {
		return err
	}
	return nil
}

// again sends a PUT by HTTP. Its body is already in memory.
func (t *Transport) again(r *http.Request, memory *rdma.Buffer, size int) (*http.Response, error) {
	if r.Context().Err() != nil {
		t.engine.pool.put(memory)
		return nil, r.Context().Err()
	}
	again := r.Clone(r.Context())
	again.Body = t.newBody(memory.Bytes()[:size], func() { t.engine.pool.put(memory) })
	again.GetBody = nil
	t.byHTTP.Add(1)
	return t.base.RoundTrip(again)
}

// get sends a GET. Unless the request has a range of known size and is direct, it first sends a HEAD request for the
// size and the headers of the response.
func (t *Transport) get(r *http.Request) (*http.Response, error) {
	response, err := t.tryGet(r)
	if err == nil {
		t.gets.Add(1)
		return response, nil
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	if errors.Is(err, errBusy) {
		return nil, err
	}
	if b, ok := r.Context().Value(intoKey{}).(*Buffer); ok && b != nil && b.lost.Load() {
		return nil, errLost // a peer could overwrite data that HTTP places in the buffer
	}
	if !errors.Is(err, errSmall) {
		t.byHTTP.Add(1)
	}
	return t.base.RoundTrip(r)
}

var errSmall = errors.New("s3rdma: the object is smaller than the threshold")

func (t *Transport) tryGet(r *http.Request) (*http.Response, error) {
	if size := rangeSize(r.Header.Get("Range")); t.options.Direct && size >= t.options.Threshold {
		return t.getInto(r, size, func(memory *rdma.Buffer) (*http.Response, error) {
			return t.exchange(r, memory, size)
		})
	}
	head := r.Clone(r.Context())
	head.Method = http.MethodHead
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		head.Header.Del(name)
	}
	head.Header.Set("X-Amz-Content-Sha256", unsigned)
	if err := t.options.Signer.Sign(r.Context(), head); err != nil {
		return nil, err
	}
	response, err := t.base.RoundTrip(head)
	if err != nil {
		return nil, err
	}
	response.Body.Close()
	size, offset, err := extent(r, response)
	if err != nil {
		return nil, err
	}
	if size < int64(t.options.Threshold) || size < 1 {
		return nil, errSmall
	}
	if size > maxSize {
		return nil, errDeclined
	}
	etag := response.Header.Get("ETag")
	return t.getInto(r, int(size), func(memory *rdma.Buffer) (*http.Response, error) {
		if t.options.Direct {
			moved, err := t.exchange(r, memory, int(size))
			if err == nil && (moved.Header.Get("ETag") != etag || moved.ContentLength != size) {
				err = errDeclined // the object changed after the HEAD request
			}
			return response, err
		}
		x, err := t.prepare(r, http.MethodGet, memory, int(size), offset)
		if err != nil {
			return nil, err
		}
		if err := x.get(etag); err != nil {
			x.abandon()
			return nil, err
		}
		return response, nil
	})
}

// getInto returns a response with up to size bytes that transfer has placed in memory.
func (t *Transport) getInto(r *http.Request, size int,
	transfer func(memory *rdma.Buffer) (*http.Response, error)) (*http.Response, error) {
	memory, release, err := t.destination(r.Context(), size)
	if err != nil {
		return nil, err
	}
	response, err := transfer(memory)
	if err != nil {
		release()
		return nil, err
	}
	response.Request = r
	if b := bufferOf(r.Context(), size); b != nil {
		b.filled.Store(response.ContentLength)
	}
	response.Body = t.newBody(memory.Bytes()[:response.ContentLength], release)
	return response, nil
}

// rangeSize returns the maximum number of bytes in a range whose ends are known, such as bytes=0-99, and 0 otherwise.
func rangeSize(header string) int {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, _ := strings.Cut(text, "-")
	from, err := strconv.ParseUint(first, 10, 63)
	to, err2 := strconv.ParseUint(last, 10, 63)
	if !ok || err != nil || err2 != nil || to < from || to-from >= maxSize {
		return 0
	}
	return int(to - from + 1)
}

// extent returns the range of the object that a GET would return. head is the response to a HEAD with the same headers.
func extent(r *http.Request, head *http.Response) (size int64, offset uint64, err error) {
	size = head.ContentLength
	if r.Header.Get("Range") == "" {
		if head.StatusCode != http.StatusOK || head.Header.Get("Content-Range") != "" {
			return 0, 0, errDeclined
		}
		return size, 0, nil
	}
	var first, last int64
	if _, err := fmt.Sscanf(head.Header.Get("Content-Range"), "bytes %d-%d/", &first, &last); err != nil ||
		head.StatusCode != http.StatusPartialContent || first < 0 || last-first+1 != size {
		return 0, 0, errDeclined
	}
	return size, uint64(first), nil
}
