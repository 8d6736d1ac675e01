// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// replayOf returns the request for the S3 server: the client's original request if the control request contains it, or
// otherwise a request with those headers of the control request that do not concern RDMA.
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

// recorder is a ResponseWriter that records the response, up to the capacity of body.
type recorder struct {
	header  http.Header
	status  int
	body    []byte
	lost    bool  // the body exceeds the capacity
	payload *pipe // receives the body in chunks while it is written, or nil
	passed  int   // bytes of the body that payload has received
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
	for rest := b; len(rest) > 0; {
		n := min(len(rest), chunk)
		r.body = append(r.body, rest[:n]...)
		rest = rest[n:]
		r.pass()
	}
	return len(b), nil
}

// ReadFrom reads the body without the buffer of [io.Copy].
func (r *recorder) ReadFrom(from io.Reader) (total int64, err error) {
	r.status = r.code()
	for {
		free := r.body[len(r.body):cap(r.body)]
		if len(free) == 0 {
			var more [1]byte
			if n, err := io.ReadFull(from, more[:]); n == 0 && err == io.EOF {
				return total, nil
			} else if n == 0 {
				return total, err
			}
			r.lost = true
			return total, io.ErrShortBuffer
		}
		n, err := from.Read(free[:min(len(free), chunk)])
		r.body = r.body[:len(r.body)+n]
		total += int64(n)
		r.pass()
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
	}
}

// pass passes the body to the payload if there is another chunk of an object.
func (r *recorder) pass() {
	if r.payload != nil && r.found() && len(r.body) >= r.passed+chunk {
		r.passed = len(r.body)
		r.payload.advance(r.passed)
	}
}

// found reports whether the response has an object.
func (r *recorder) found() bool {
	return r.code() == http.StatusOK || r.code() == http.StatusPartialContent
}

// send writes the recorded response to w.
func (r *recorder) send(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.WriteHeader(r.code())
	w.Write(r.body)
}

// code returns the status, which is 200 if the server set none.
func (r *recorder) code() int {
	if r.status == 0 {
		return http.StatusOK
	}
	return r.status
}
