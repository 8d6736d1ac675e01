// SPDX-License-Identifier: BSD-2-Clause

package s3rdma

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/goverbs/goverbs/rdma"
)

// session is a transfer from prepare to its end. Only its creator and, after begin, ready may use its link and memory.
type session struct {
	request
	id     string
	owner  owner
	link   *link
	memory *rdma.Buffer
	replay *http.Request // for a PUT
	header http.Header   // for a GET: headers of the S3 server's response
	expiry *time.Timer
	joined bool // the link is connected

	busy   bool               // ready is in progress; guarded by Handler.mu
	cancel context.CancelFunc // cancels the transfer if busy
}

// owner is a digest that identifies a client's access key.
type owner [sha256.Size]byte

// ownerOf returns the digest of the access key in a request's signature.
func ownerOf(r *http.Request) owner {
	_, credential, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
	key, _, _ := strings.Cut(credential, "/")
	return sha256.Sum256([]byte(key))
}

// join connects to the client's queue pair and posts the receive for the client's write.
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

// transfer transfers the payload.
func (s *session) transfer(ctx context.Context, key memoryKey) error {
	if s.joined && key.qpn != s.client.qpn {
		return failed(http.StatusBadRequest, "malformed", "the queue pair differs from the token's")
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

// revoke ends the client's access to the session's memory. If it fails, the memory is not reused.
func (s *session) revoke() error {
	if s.link == nil {
		return nil
	}
	return s.link.close()
}
