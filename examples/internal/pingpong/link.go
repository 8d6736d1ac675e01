// SPDX-License-Identifier: BSD-2-Clause

package pingpong

import (
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/goverbs/goverbs/rdma"
)

// Link is the TCP connection to the other end.
type Link struct {
	Client bool // this end opened the connection and sends first
	conn   net.Conn
	quiet  bool
}

// Exchange exchanges endpoints with the other end and calls connect with the peer's. The server connects before it
// sends its endpoint, so that the client can send at once.
func (l *Link) Exchange(own rdma.Endpoint, connect func(peer rdma.Endpoint) error) error {
	l.print("local", own)
	if l.Client {
		return l.call(own, connect)
	}
	peer, err := l.receive()
	if err != nil {
		return err
	}
	if err = connect(peer); err != nil {
		return err
	}
	if err = l.send(own); err != nil {
		return err
	}
	_, err = io.ReadFull(l.conn, make([]byte, len(done)))
	return err
}

func (l *Link) call(own rdma.Endpoint, connect func(peer rdma.Endpoint) error) error {
	if err := l.send(own); err != nil {
		return err
	}
	peer, err := l.receive()
	if err != nil {
		return err
	}
	if _, err = l.conn.Write([]byte(done)); err != nil {
		return err
	}
	return connect(peer)
}

// Format of an endpoint on the TCP connection: LID, QP number, PSN and GID in hexadecimal, and a NUL.
const (
	format = "%04x:%06x:%06x:%x\x00"
	length = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1
	done   = "done\x00"
)

func (l *Link) send(own rdma.Endpoint) error {
	_, err := fmt.Fprintf(l.conn, format, own.LID, own.QPNum, own.PSN, own.GID.Raw()[:])
	return err
}

func (l *Link) receive() (peer rdma.Endpoint, err error) {
	text := make([]byte, length)
	if _, err = io.ReadFull(l.conn, text); err != nil {
		return peer, err
	}
	peer, err = parse(strings.TrimRight(string(text), "\x00"))
	if err == nil {
		peer.QKey = rdma.DefaultQKey // the key of all UD queue pairs here
		l.print("remote", peer)
	}
	return peer, err
}

func parse(text string) (peer rdma.Endpoint, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 4 {
		return peer, fmt.Errorf("invalid endpoint %q", text)
	}
	var numbers [3]uint64
	for i := range numbers {
		if numbers[i], err = strconv.ParseUint(parts[i], 16, []int{16, 24, 24}[i]); err != nil {
			return peer, fmt.Errorf("invalid endpoint %q: %w", text, err)
		}
	}
	peer.LID, peer.QPNum, peer.PSN = uint16(numbers[0]), uint32(numbers[1]), uint32(numbers[2])
	if n, err := hex.Decode(peer.GID.Raw()[:], []byte(parts[3])); err != nil || n != 16 {
		return peer, fmt.Errorf("invalid endpoint %q: the GID must have 32 hexadecimal digits", text)
	}
	return peer, nil
}

func (l *Link) print(which string, e rdma.Endpoint) {
	if !l.quiet {
		fmt.Printf("%s: LID %#04x, QPN %#06x, PSN %#06x, GID %s\n", which, e.LID, e.QPNum, e.PSN, e.GID)
	}
}
