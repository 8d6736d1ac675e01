// SPDX-License-Identifier: BSD-2-Clause

// Package filecopy copies a file to another host. The sender writes it over RDMA into the receiver's mapping of the
// file; the receiver's CPU only computes the checksum.
package filecopy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rpma"
)

// Result is the result of a copy.
type Result struct {
	File    string  `json:"file"`
	Bytes   uint64  `json:"bytes"`
	SHA256  string  `json:"sha256"` // computed by both ends
	Seconds float64 `json:"seconds"`
}

// WriteText writes a line.
func (r *Result) WriteText(w io.Writer) error {
	const mebi = 1 << 20
	_, err := fmt.Fprintf(w, "%s: %d bytes in %.3f s, %.0f MiB/s, sha256 %s\n", r.File, r.Bytes, r.Seconds,
		float64(r.Bytes)/mebi/max(r.Seconds, 1e-9), r.SHA256)
	return err
}

const (
	chunk = 1 << 20 // bytes per write
	depth = 16      // writes in flight
)

// The sender offers the file in its connection request and sends a message once connected. The receiver then allocates
// the file and answers with its location or a refusal. The sender writes the data and sends another message; the
// receiver compares the checksums and answers.

// offer is the private data of a connection request: size and checksum of the file.
type offer struct {
	size uint64
	sum  [sha256.Size]byte
}

// magic begins an offer and identifies this protocol.
const magic = "gvcp0002"

func (o offer) marshal() []byte {
	b := binary.LittleEndian.AppendUint64([]byte(magic), o.size)
	return append(b, o.sum[:]...)
}

// parseOffer decodes an offer from another host.
func parseOffer(b []byte) (o offer, err error) {
	size := len(magic) + 8 + sha256.Size
	if len(b) < size || string(b[:len(magic)]) != magic {
		return o, errors.New("not a request of goverbs cp of this version")
	}
	o.size = binary.LittleEndian.Uint64(b[len(magic):])
	o.sum = [sha256.Size]byte(b[len(magic)+8 : size])
	return o, nil
}

// First bytes of a receiver's message. An acceptance is followed by the location, unless the file is empty, a refusal
// by the reason.
const (
	acceptance = "gvok0002"
	refusal    = "gvno0002"
)

// longestAnswer is the maximum size of a receiver's message: a page, so that the chunks after it are aligned.
const longestAnswer = 4096

// parseAnswer decodes a receiver's message about a file of the given size.
func parseAnswer(b []byte, size uint64) (*rpma.RemoteMR, error) {
	if reason, is := bytes.CutPrefix(b, []byte(refusal)); is {
		return nil, fmt.Errorf("receiver refused the file: %q", reason)
	}
	location, is := bytes.CutPrefix(b, []byte(acceptance))
	if !is {
		return nil, errors.New("peer is not goverbs cp --listen; use the same version on both ends")
	}
	if size == 0 {
		return nil, nil
	}
	to, err := rpma.ParseRemoteMR(location)
	if err == nil && to.Len() < size {
		err = fmt.Errorf("receiver allocated %d bytes of %d", to.Len(), size)
	}
	return to, err
}

// connectTime bounds the wait for the peer's answer. The connection manager of Linux retries for more than a minute.
const connectTime = 15 * time.Second

// Results that the receiver reports as immediate data.
const (
	arrived  = 0
	differs  = 1
	unstored = 2
)

// answers maps them to the sender's errors.
var answers = map[uint32]error{
	arrived:  nil,
	differs:  errors.New("checksum of the receiver's copy differs: the file changed during the copy; copy it again"),
	unstored: errors.New("receiver could not store its copy; see its output"),
}

// Leave passes the open descriptors of the kernel's connection manager to another process, which closes them after this
// one has ended. It reports whether there are any: closing may take long after a failed copy. It is nil in a process
// that continues, which closes them and waits.
var Leave func() (left bool, err error)

// opened lists objects in the order in which they were opened.
type opened []io.Closer

func (o *opened) add(c io.Closer) { *o = append(*o, c) }

// Close closes the objects, the last one first.
func (o *opened) Close() error { return o.after(nil) }

// after closes the objects, or leaves them after a failure. It joins both errors.
func (o *opened) after(failed error) error {
	if failed != nil && Leave != nil {
		if left, err := Leave(); left {
			return errors.Join(failed, err)
		}
	}
	for _, c := range slices.Backward(*o) {
		failed = errors.Join(failed, c.Close())
	}
	return failed
}

// open opens the device that has the address, or that routes to it, as a peer.
func (o *opened) open(ctx context.Context, side rpma.Side, address string) (*rpma.Peer, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	device, err := rpma.FindDevice(ctx, side, host)
	if err != nil {
		if _, unknown := net.DefaultResolver.LookupHost(ctx, host); unknown != nil {
			return nil, fmt.Errorf("%w; give a known host name or an address", unknown)
		}
		return nil, err
	}
	o.add(device)
	peer, err := rpma.NewPeer(device, rpma.PeerOptions{})
	if err == nil {
		o.add(peer)
	}
	return peer, err
}

// Address appends the default port if address has none.
func Address(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "18519")
}

var config = &rpma.ConnConfig{SQSize: depth + 1, RQSize: 1, CQSize: depth + 2}

// Send copies a file to the receiver at address. It calls progress periodically with the number of bytes sent.
//
// It reads the file instead of mapping it, so that truncation by another program is an error and not a fault.
func Send(ctx context.Context, name, address string, progress func(done, of uint64)) (result *Result, err error) {
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() { // opening a pipe would wait for a writer
		return nil, fmt.Errorf("%q is not a regular file", name)
	}
	source, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q is not a regular file", name)
	}
	o := offer{size: uint64(info.Size())}
	if o.sum, err = checksum(source, o.size); err != nil {
		return nil, err
	}
	var open opened
	defer func() { err = open.after(err) }()
	begin := time.Now()
	s, err := open.dial(ctx, address, o)
	if err != nil {
		return nil, err
	}
	if err := s.send(ctx, source, progress); err != nil {
		return nil, err
	}
	return &Result{File: name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum[:]),
		Seconds: time.Since(begin).Seconds()}, nil
}

// checksum computes the checksum of the first size bytes.
func checksum(f *os.File, size uint64) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(f, 0, int64(size)))
	if err == nil && uint64(n) != size {
		err = truncated(f)
	}
	return [sha256.Size]byte(h.Sum(nil)), err
}

func truncated(f *os.File) error {
	return fmt.Errorf("read: %q: file was truncated during the copy", f.Name())
}

// sender is a connection to a receiver.
type sender struct {
	offer
	conn   *rpma.Conn
	async  *rpma.Async
	memory *rpma.MR // longestAnswer bytes for the receiver's message, followed by depth chunks
}

// dial connects to a receiver and offers a file.
func (o *opened) dial(ctx context.Context, address string, of offer) (*sender, error) {
	peer, err := o.open(ctx, rpma.Remote, address)
	if err != nil {
		return nil, err
	}
	s := &sender{offer: of}
	size := longestAnswer + min(of.size, depth*chunk)
	if s.memory, err = peer.RegMR(make([]byte, size), rpma.RecvDst|rpma.WriteSrc); err != nil {
		return nil, err
	}
	o.add(s.memory)
	s.conn, err = connect(ctx, peer, address, of)
	if s.conn != nil {
		o.add(s.conn)
	}
	if err != nil {
		return nil, err
	}
	s.async, err = s.conn.NewAsync(depth + 1)
	return s, err
}

// connect offers the file. It may return both a connection and an error.
func connect(ctx context.Context, peer *rpma.Peer, address string, o offer) (*rpma.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	request, err := peer.NewConnRequest(limited, address, config)
	var conn *rpma.Conn
	if err == nil {
		conn, err = request.Connect(o.marshal())
	}
	if err == nil {
		err = conn.WaitEstablished(limited)
	}
	switch event := new(rpma.EventError); {
	case err == nil || ctx.Err() != nil:
	case limited.Err() != nil:
		err = fmt.Errorf("%s: no answer; start goverbs cp --listen there, with an adapter or -d soft@ADDRESS, and "+
			"allow UDP port 4791 in firewalls", address)
	case errors.As(err, &event) && event.Event == rpma.Rejected:
		err = fmt.Errorf("%s: %w; start goverbs cp --listen there", address, err)
	}
	return conn, err
}

// confirm confirms the offer and returns the location of the file at the receiver.
func (s *sender) confirm(ctx context.Context) (*rpma.RemoteMR, error) {
	wc, err := s.exchange(ctx, longestAnswer)
	if err != nil {
		return nil, err
	}
	return parseAnswer(s.memory.Bytes()[:min(wc.ByteLen, longestAnswer)], s.size)
}

// exchange sends a message without data and returns the completion of the receiver's answer, which is received into the
// start of the memory.
func (s *sender) exchange(ctx context.Context, size uint64) (wc ibv.WC, err error) {
	into := s.memory
	if size == 0 {
		into = nil
	}
	answer, err := s.async.Recv(into, 0, size) // posted before the message that the receiver answers
	if err != nil {
		return wc, err
	}
	sent, err := s.async.SendWithImm(nil, 0, 0, arrived)
	if err != nil {
		return wc, err
	}
	if _, err := sent.Wait(ctx); err != nil {
		return wc, err
	}
	for { // like await
		limited, cancel := context.WithTimeout(ctx, probeInterval)
		wc, err = answer.Wait(limited)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return wc, err
		}
		probe, err := s.async.Write(nil, 0, nil, 0, 0)
		if err == nil {
			_, err = probe.Wait(ctx)
		}
		if err != nil {
			return wc, fmt.Errorf("connection to the receiver lost: %w", err)
		}
	}
}

// send sends the file and waits until the receiver has stored it.
func (s *sender) send(ctx context.Context, from *os.File, progress func(done, of uint64)) error {
	to, err := s.confirm(ctx)
	if err != nil {
		return err
	}
	if err := s.writeAll(ctx, to, from, progress); err != nil {
		return err
	}
	return s.finish(ctx)
}

// writeAll writes the file, with up to depth writes in flight.
func (s *sender) writeAll(ctx context.Context, to *rpma.RemoteMR, from *os.File,
	progress func(done, of uint64)) error {
	var writes []rpma.Op
	wait := func() error {
		_, err := writes[0].Wait(ctx)
		writes = writes[1:]
		return err
	}
	for at := uint64(0); at < s.size; at += chunk {
		if len(writes) == depth {
			if err := wait(); err != nil {
				return err
			}
		}
		n, offset := min(chunk, s.size-at), longestAnswer+at%(depth*chunk)
		if _, err := from.ReadAt(s.memory.Bytes()[offset:offset+n], int64(at)); err == io.EOF {
			return truncated(from)
		} else if err != nil {
			return err
		}
		op, err := s.async.Write(to, at, s.memory, offset, n)
		if err != nil {
			return err
		}
		writes = append(writes, op)
		progress(at, s.size)
	}
	for len(writes) > 0 {
		if err := wait(); err != nil {
			return err
		}
	}
	progress(s.size, s.size)
	return nil
}

// finish reports the end of the data and waits for the receiver's answer.
func (s *sender) finish(ctx context.Context) error {
	wc, err := s.exchange(ctx, 0)
	if err != nil {
		return err
	}
	code, _ := rpma.Immediate(&wc)
	text, known := answers[code]
	if !known {
		return fmt.Errorf("unknown answer %d from the receiver; use the same version on both ends", code)
	}
	return text
}
