// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

const unsigned = "UNSIGNED-PAYLOAD"

// transfer is a transfer that the server has accepted.
type transfer struct {
	t       *Transport
	request // as sent to the server
	origin  *http.Request
	link    *link
	session string
	remote  memoryKey
}

// prepare asks the server for a transfer and connects to it. Any error means that HTTP must be used.
func (t *Transport) prepare(r *http.Request, op string, memory *rdma.Buffer, size int, offset uint64) (*transfer, error) {
	link, err := t.engine.newLink(memory, size, op == http.MethodGet)
	if err != nil {
		return nil, err
	}
	x := &transfer{t: t, origin: r, link: link}
	own, err := link.token()
	if err != nil {
		link.close()
		return nil, err
	}
	x.request = request{op: op, target: r.URL.EscapedPath(), size: size, offset: offset, client: own, psn: link.psn,
		cookie: random(32)}
	if err := x.begin(); err != nil {
		x.abandon()
		return nil, err
	}
	return x, nil
}

func (x *transfer) begin() error {
	header := http.Header{}
	x.request.set(header)
	if query := x.origin.URL.RawQuery; query != "" {
		header.Set(headerQuery, query)
	}
	for name, values := range x.origin.Header {
		if name != "Expect" { // applies to the HTTP connection only
			header[http.CanonicalHeaderKey(headerOriginal+name)] = values
		}
	}
	response, err := x.control(x.origin.Context(), pathPrepare, header)
	if err != nil {
		return err
	}
	h := response.Header
	if response.StatusCode == http.StatusNotImplemented || h.Get(headerProtocol) != protocolV2 {
		x.t.decline(x.origin.URL.Host)
		return errDeclined
	}
	if response.StatusCode != http.StatusOK {
		return errDeclined
	}
	x.session = h.Get(headerSession)
	reply, err := replyOf(h)
	if err != nil {
		return err
	}
	if h.Get(headerReplays) == "" && !x.foreign() {
		return errDeclined
	}
	x.remote = reply.memory
	if err := x.link.connect(reply.server, reply.memory.qpn, reply.psn); err != nil {
		return err
	}
	if x.op == http.MethodGet {
		return x.link.expect()
	}
	return nil
}

// foreign reports whether the request has the same effect by RDMA with a server that does not replay the original
// request.
func (x *transfer) foreign() bool {
	if !x.t.options.Foreign {
		return false
	}
	for name := range x.origin.URL.Query() {
		if name != "x-id" {
			return false
		}
	}
	for name := range x.origin.Header {
		switch lower := strings.ToLower(name); {
		case strings.HasPrefix(lower, "x-amz-meta-"), strings.HasPrefix(lower, "x-amz-server-side"),
			strings.HasPrefix(lower, "x-amz-object-lock"), strings.HasPrefix(lower, "x-amz-grant"),
			strings.HasPrefix(lower, "if-"):
			return false
		}
		switch name {
		case "Content-Encoding", "Cache-Control", "Content-Disposition", "Content-Language", "Expires", "X-Amz-Acl",
			"X-Amz-Tagging", "X-Amz-Storage-Class", "X-Amz-Website-Redirect-Location":
			return false
		}
	}
	return !strings.HasPrefix(x.origin.Header.Get("X-Amz-Content-Sha256"), "STREAMING-")
}

// decline records that a host does not support the protocol.
func (t *Transport) decline(host string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.declined[host] = time.Now().Add(t.options.RetryAfter)
}

// control sends a signed control request. The response's body is already closed.
func (x *transfer) control(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	u := *x.origin.URL
	u.Path, u.RawPath, u.RawQuery = path, "", ""
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Host = x.origin.Host
	r.Header = header
	header.Set("X-Amz-Content-Sha256", unsigned)
	if err := x.t.options.Signer.Sign(ctx, r); err != nil {
		return nil, err
	}
	response, err := x.t.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	response.Body.Close()
	return response, nil
}

// ready starts the transfer at the server, and returns when the server has finished.
func (x *transfer) ready(ctx context.Context) (*http.Response, error) {
	header := http.Header{}
	header.Set(headerProtocol, protocolV2)
	header.Set(headerSession, x.session)
	header.Set(headerCookie, fmt.Sprintf("%08x", x.cookie))
	x.link.key().set(header)
	response, err := x.control(ctx, pathReady, header)
	if err != nil {
		return nil, err
	}
	h := response.Header
	switch cookie, err := hexHeader(h, headerCookie, 8); {
	case response.StatusCode != http.StatusOK || h.Get(headerProtocol) != protocolV2:
		return nil, errDeclined
	case err != nil || uint32(cookie) != x.cookie || h.Get(headerTransferred) != strconv.Itoa(x.size):
		return nil, errDeclined
	}
	return response, nil
}

// put writes the payload to the server's memory. The result is the S3 server's response.
func (x *transfer) put() (*http.Response, error) {
	ctx, cancel := context.WithTimeout(x.origin.Context(), x.t.options.TransferTimeout)
	defer cancel()
	if err := x.link.write(x.remote, x.cookie); err != nil {
		return nil, err
	}
	// Send the ready request before the write completes: the server may connect its queue pair only then.
	wrote := make(chan error, 1)
	go func() {
		err := x.link.written(ctx)
		if err != nil {
			cancel()
		}
		wrote <- err
	}()
	response, err := x.ready(ctx)
	if err != nil {
		cancel()
	}
	if failed := <-wrote; failed != nil || err != nil {
		return nil, errors.Join(failed, err)
	}
	x.link.close() // even if it fails, the object is stored; the engine then keeps the memory
	h := response.Header
	etag, version := h.Get(headerETag), h.Get(headerVersion)
	for name := range h {
		if strings.HasPrefix(name, headerPrefix) || name == headerReplays {
			delete(h, name)
		}
	}
	if etag != "" {
		h.Set("ETag", etag)
	}
	if version != "" {
		h.Set("X-Amz-Version-Id", version)
	}
	h.Set("Content-Length", "0")
	response.Request, response.Body, response.ContentLength = x.origin, http.NoBody, 0
	return response, nil
}

// get waits until the server has written the object with this ETag.
func (x *transfer) get(etag string) error {
	ctx, cancel := context.WithTimeout(x.origin.Context(), x.t.options.TransferTimeout)
	defer cancel()
	response, err := x.ready(ctx)
	if err != nil {
		return err
	}
	if err := x.link.arrived(ctx, x.cookie, x.size); err != nil {
		return err
	}
	if sent := response.Header.Get(headerETag); sent != "" && etag != "" && sent != etag {
		return errDeclined // the object changed after the HEAD request
	}
	return x.link.close()
}

// abandon ends the transfer on this side, and then, without waiting, at the server.
func (x *transfer) abandon() {
	x.link.close()
	if x.session == "" {
		return
	}
	x.t.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(x.origin.Context()), 5*time.Second)
		defer cancel()
		header := http.Header{}
		header.Set(headerProtocol, protocolV2)
		header.Set(headerSession, x.session)
		x.control(ctx, pathCancel, header)
	})
}
