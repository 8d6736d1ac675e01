// SPDX-License-Identifier: BSD-2-Clause

package udp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	passLimit   = time.Second // for the bytes of a message that is passed, which are sent at once
	maxPassed   = 1 << 12
	serviceName = "service/%x"
)

// Claim is a service that a socket has claimed.
type Claim struct{ listener *net.UnixListener }

// Claim makes the socket the one of its group that messages for a service are passed to, until Close of the claim; take
// gets each of them, and is called by one goroutine. Its error is EADDRINUSE where another member has the service,
// also one of this process. A socket that shares nothing needs no claim: it is nil.
func (s *Socket) Claim(service uint64, take func([]byte)) (*Claim, error) {
	if s.group == nil {
		return nil, nil
	}
	l, err := net.ListenUnix("unixpacket", s.group.service(service))
	if err != nil {
		return nil, fmt.Errorf("udp: a process that shares %v has service %#x: %w", s.addr, service, err)
	}
	go answer(l, func(c *net.UnixConn) {
		defer c.Close()
		b := make([]byte, maxPassed)
		_ = c.SetReadDeadline(time.Now().Add(passLimit))
		if n, err := c.Read(b); err == nil {
			take(b[:n])
		}
	})
	return &Claim{l}, nil
}

// Close gives the service up.
func (c *Claim) Close() {
	if c != nil {
		c.listener.Close()
	}
}

func (g *group) service(service uint64) *net.UnixAddr {
	return &net.UnixAddr{Net: "unixpacket", Name: g.prefix + fmt.Sprintf(serviceName, service)}
}

// Claimant says which process has claimed a service; "" is none.
func (s *Socket) Claimant(service uint64) string {
	if s.group == nil {
		return ""
	}
	c, err := net.DialUnix("unixpacket", nil, s.group.service(service))
	if err != nil {
		return ""
	}
	defer c.Close()
	cred, err := credentials(c)
	if err != nil {
		return ""
	}
	if err := isOurs(c); err != nil {
		return fmt.Sprintf("process %d has its name: %v", cred.Pid, err)
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid))
	return fmt.Sprintf("process %d (%q), which shares the address, has it", cred.Pid, strings.TrimSpace(string(name)))
}

// Pass gives a message for a service to the member that has claimed it, and says whether there is one. It does not
// wait: what a member has no room for is lost.
func (s *Socket) Pass(service uint64, b []byte) bool {
	if s.group == nil {
		return false
	}
	c, err := net.DialUnix("unixpacket", nil, s.group.service(service))
	if err != nil {
		return !errors.Is(err, unix.ECONNREFUSED)
	}
	defer c.Close()
	if isOurs(c) != nil { // a stranger has the name
		return false
	}
	_, _ = c.Write(b)
	return true
}
