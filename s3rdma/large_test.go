// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// generatedContent is deterministic content of any size. Each page begins with its number, followed by random bytes.
type generatedContent struct{ page [4096]byte }

func newGeneratedContent() *generatedContent {
	e := &generatedContent{}
	rand.NewChaCha8([32]byte{1}).Read(e.page[:])
	return e
}

func (e *generatedContent) ReadAt(p []byte, at int64) (n int, err error) {
	for n < len(p) {
		page := e.page
		binary.LittleEndian.PutUint64(page[:], uint64(at)>>12)
		c := copy(p[n:], page[at&4095:])
		n, at = n+c, at+int64(c)
	}
	return n, nil
}

// part returns a range of the content.
func (e *generatedContent) part(from, size int64) *io.SectionReader {
	return io.NewSectionReader(e, from, size)
}

// same returns an error unless r has exactly the content of a range.
func (e *generatedContent) same(r io.Reader, from, size int64) error {
	got, want := make([]byte, 256<<10), make([]byte, 256<<10)
	for at := from; ; {
		n, err := io.ReadFull(r, got)
		e.ReadAt(want[:n], at)
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("bytes differ from offset %d", at)
		}
		at += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			if at != from+size {
				return fmt.Errorf("%d bytes of %d", at-from, size)
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// TestLarge puts objects of about 4 GiB in parts and gets them in ranges by RDMA. A single request for all of it uses
// HTTP, because a transfer has at most 2 GiB. The server compares and generates the content instead of storing it.
// Without GOVERBS_EVERYTHING, the objects have about 4 MiB.
func TestLarge(t *testing.T) {
	about, least := int64(4<<20), int64(1)
	if everything() {
		about, least = 4<<30, 1<<20
	}
	part := about / 16
	content := newGeneratedContent()
	var size int64
	p := newPair(t, HandlerOptions{TransferTimeout: 5 * time.Minute, SessionLifetime: 5 * time.Minute},
		Options{Threshold: int(least), TransferTimeout: 5 * time.Minute, Idle: 1 << 30}, nil)
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if r.Method != http.MethodPut {
			w.Header().Set("Content-Type", "application/octet-stream")
			http.ServeContent(w, r, "", time.Time{}, content.part(0, size))
			return
		}
		from, n := int64(0), r.ContentLength
		if number, err := strconv.ParseInt(r.URL.Query().Get("partNumber"), 10, 64); err == nil {
			from = (number - 1) * part
		}
		if err := content.same(r.Body, from, n); err != nil {
			t.Errorf("%v: %v", r.URL, err)
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	p.handler.inner = server
	do := func(method, uri string, body io.Reader, n int64, ranged string) *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), method, p.server.URL+uri, body)
		require.NoError(t, err)
		r.ContentLength = n
		r.Header.Set("Authorization", credential)
		if ranged != "" {
			r.Header.Set("Range", ranged)
		}
		response, err := p.client.Do(r)
		require.NoError(t, err)
		return response
	}
	for _, size = range []int64{about - 1, about, about + 1} {
		before := p.transport.Stats()
		parts := uint64(0)
		for from := int64(0); from < size; from += part {
			n := min(part, size-from)
			response := do(http.MethodPut, fmt.Sprintf("/b/k?partNumber=%d&uploadId=1", from/part+1), content.part(from, n),
				n, "")
			assert.Equal(t, http.StatusOK, response.StatusCode)
			response.Body.Close()
			response = do(http.MethodGet, "/b/k", nil, 0, fmt.Sprintf("bytes=%d-%d", from, from+n-1))
			assert.Equal(t, fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, size), response.Header.Get("Content-Range"))
			assert.NoError(t, content.same(response.Body, from, n))
			response.Body.Close()
			if n >= least {
				parts++
			}
		}
		after := p.transport.Stats()
		assert.Equal(t, parts, after.Puts-before.Puts, "puts")
		assert.Equal(t, parts, after.Gets-before.Gets, "gets")

		response := do(http.MethodPut, "/b/k", content.part(0, size), size, "")
		assert.Equal(t, http.StatusOK, response.StatusCode)
		response.Body.Close()
		response = do(http.MethodGet, "/b/k", nil, 0, "")
		assert.Equal(t, size, response.ContentLength)
		assert.NoError(t, content.same(response.Body, 0, size))
		response.Body.Close()
		if size > maxSize {
			assert.Equal(t, after.Puts, p.transport.Stats().Puts, "a transfer of more than 2 GiB")
			assert.Equal(t, after.Declined+1, p.transport.Stats().Declined)
		}
	}
}

// TestLargest: the protocol's maximum transfer is 2^31 - 1 bytes. Larger requests use HTTP without asking the server.
func TestLargest(t *testing.T) {
	p := newPair(t, HandlerOptions{}, Options{}, nil)
	r := httptest.NewRequest(http.MethodPut, p.server.URL+"/b/k", http.NoBody)
	r.Header.Set("Authorization", credential)
	r.Body = io.NopCloser(newGeneratedContent().part(0, 1<<32))
	for size, want := range map[int64]bool{maxSize: true, maxSize + 1: false, 1<<32 - 1: false, 1 << 32: false,
		1<<32 + 1<<20: false} {
		r.ContentLength = size
		assert.Equal(t, want, p.transport.eligible(r), size)
	}
}
