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
	header http.Header
	status int
	body   []byte
	lost   bool // the body exceeds the capacity
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
