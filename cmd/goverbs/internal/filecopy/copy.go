// SPDX-License-Identifier: BSD-2-Clause

// Package filecopy copies a file to another host: the sender writes by RDMA into the receiver's mapping of the file,
// and the processors of the receiver compute the checksum alone.
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

// Result is what was copied.
type Result struct {
	File    string  `json:"file"`
	Bytes   uint64  `json:"bytes"`
	SHA256  string  `json:"sha256"` // which both ends have computed
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
	chunk = 1 << 20 // bytes of a write
	depth = 16      // writes under way
)

// The sender offers a file in its request, and sends a message when the connection is established. Only then does the
// receiver make room; it answers with the place or a refusal. The sender writes, and sends another message; the
// receiver compares the checksums, and answers.

// offer is the private data of a request for a connection: the file's size and checksum.
type offer struct {
	size uint64
	sum  [sha256.Size]byte
}

// magic begins an offer, so that a request of another program is refused.
const magic = "gvcp0002"

func (o offer) marshal() []byte {
	b := binary.LittleEndian.AppendUint64([]byte(magic), o.size)
	return append(b, o.sum[:]...)
}

// parseOffer reads an offer, which is data of another host.
func parseOffer(b []byte) (o offer, err error) {
	size := len(magic) + 8 + sha256.Size
	if len(b) < size || string(b[:len(magic)]) != magic {
		return o, errors.New("not a request of goverbs cp of this version")
	}
	o.size = binary.LittleEndian.Uint64(b[len(magic):])
	o.sum = [sha256.Size]byte(b[len(magic)+8 : size])
	return o, nil
}

// Messages of a receiver begin with one of these: a place follows the first one, unless the file is empty, and a reason
// the second one.
const (
	acceptance = "gvok0002"
	refusal    = "gvno0002"
)

// longestAnswer is the most bytes of a receiver's message. It is a page, so that chunks behind it are aligned.
const longestAnswer = 4096

// parseAnswer reads a receiver's message about a file of a size, which is data of another host.
func parseAnswer(b []byte, size uint64) (*rpma.RemoteMR, error) {
	if why, is := bytes.CutPrefix(b, []byte(refusal)); is {
		return nil, fmt.Errorf("the receiver refuses the file: %q", why)
	}
	place, is := bytes.CutPrefix(b, []byte(acceptance))
	if !is {
		return nil, errors.New("the peer is not goverbs cp --listen of this version")
	}
	if size == 0 {
		return nil, nil
	}
	to, err := rpma.ParseRemoteMR(place)
	if err == nil && to.Len() < size {
		err = fmt.Errorf("the receiver has room for %d bytes of %d", to.Len(), size)
	}
	return to, err
}

// connectTime is the time that a peer has to answer. The connection manager of Linux asks for longer than a minute.
const connectTime = 15 * time.Second

// What the receiver says of the whole file, as immediate data.
const (
	arrived  = 0
	differs  = 1
	unstored = 2
)

// answers are the errors that they stand for at the sender.
var answers = map[uint32]error{
	arrived: nil,
	differs: errors.New("the receiver's copy has another checksum: the file changed while it was copied; " +
		"copy it again"),
	unstored: errors.New("the receiver could not store its copy; it says why"),
}

// Leave has another process close what this one has open of the kernel's connection manager, when this one has ended,
// and says if there is something: that may take Linux long after a copy failed. A program that does not end has nil
// here; then this process closes it and waits.
var Leave func() (left bool, err error)

// opened are objects in the order in which they were opened.
type opened []io.Closer

func (o *opened) add(c io.Closer) { *o = append(*o, c) }

// Close closes the objects, the last one first.
func (o *opened) Close() error { return o.after(nil) }

// after closes the objects, the last one first, or leaves them after a failure; the error is of both.
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

// open finds the device of an address, or that leads to it, and makes a peer of it.
func (o *opened) open(ctx context.Context, side rpma.Side, address string) (*rpma.Peer, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	device, err := rpma.FindDevice(ctx, side, host)
	if err != nil {
		if _, unknown := net.DefaultResolver.LookupHost(ctx, host); unknown != nil {
			return nil, fmt.Errorf("%w: give a name that this host knows, or an address", unknown)
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

// Address adds the usual port to a host that has none.
func Address(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "18519")
}

var config = &rpma.ConnConfig{SQSize: depth + 1, RQSize: 1, CQSize: depth + 2}

// Send copies a file to a receiver at an address. It calls progress, from time to time, with the bytes so far.
//
// It reads the file and does not map it: a file that another program truncates meanwhile is an error, and not a fault.
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

// checksum reads the file's first size bytes.
func checksum(f *os.File, size uint64) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(f, 0, int64(size)))
	if err == nil && uint64(n) != size {
		err = truncated(f)
	}
	return [sha256.Size]byte(h.Sum(nil)), err
}

func truncated(f *os.File) error {
	return fmt.Errorf("read: %q: another program truncated the file meanwhile", f.Name())
}

// sender is a connection to a receiver.
type sender struct {
	offer
	conn   *rpma.Conn
	async  *rpma.Async
	memory *rpma.MR // longestAnswer bytes for the receiver's message, and then as many chunks as are written at once
}

// dial connects to a receiver and offers a file.
func (o *opened) dial(ctx context.Context, address string, of offer) (*sender, error) {
	peer, err := o.open(ctx, rpma.Remote, address)
	if err != nil {
		return nil, err
	}
	s := &sender{offer: of}
	room := longestAnswer + min(of.size, depth*chunk)
	if s.memory, err = peer.RegMR(make([]byte, room), rpma.RecvDst|rpma.WriteSrc); err != nil {
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

// connect offers the file. The connection is returned with an error, too, if there is one.
func connect(ctx context.Context, peer *rpma.Peer, address string, o offer) (*rpma.Conn, error) {
	soon, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	request, err := peer.NewConnRequest(soon, address, config)
	var conn *rpma.Conn
	if err == nil {
		conn, err = request.Connect(o.marshal())
	}
	if err == nil {
		err = conn.WaitEstablished(soon)
	}
	switch event := new(rpma.EventError); {
	case err == nil || ctx.Err() != nil:
	case soon.Err() != nil:
		err = fmt.Errorf("%s does not answer: start goverbs cp --listen there, on an adapter or with -d soft@ADDRESS, an "+
			"address of that host, and let UDP port 4791 through firewalls", address)
	case errors.As(err, &event) && event.Event == rpma.Rejected:
		err = fmt.Errorf("%s: %w: start goverbs cp --listen there", address, err)
	}
	return conn, err
}

// ask confirms the offer, and returns the file's place at the receiver.
func (s *sender) ask(ctx context.Context) (*rpma.RemoteMR, error) {
	wc, err := s.exchange(ctx, longestAnswer)
	if err != nil {
		return nil, err
	}
	return parseAnswer(s.memory.Bytes()[:min(wc.ByteLen, longestAnswer)], s.size)
}

// exchange sends a message without data, and returns the completion of the receiver's answer of some bytes at most,
// which come to the begin of the memory.
func (s *sender) exchange(ctx context.Context, room uint64) (wc ibv.WC, err error) {
	into := s.memory
	if room == 0 {
		into = nil
	}
	answer, err := s.async.Recv(into, 0, room) // in time: the receiver answers the message
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
	for { // as await does
		soon, cancel := context.WithTimeout(ctx, quiet)
		wc, err = answer.Wait(soon)
		cancel()
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return wc, err
		}
		probe, err := s.async.Write(nil, 0, nil, 0, 0)
		if err == nil {
			_, err = probe.Wait(ctx)
		}
		if err != nil {
			return wc, fmt.Errorf("the receiver has gone: %w", err)
		}
	}
}

// send sends the file, and waits until the receiver has stored it.
func (s *sender) send(ctx context.Context, from *os.File, progress func(done, of uint64)) error {
	to, err := s.ask(ctx)
	if err != nil {
		return err
	}
	if err := s.writeAll(ctx, to, from, progress); err != nil {
		return err
	}
	return s.finish(ctx)
}

// writeAll keeps some writes under way, each of a chunk.
func (s *sender) writeAll(ctx context.Context, to *rpma.RemoteMR, from *os.File,
	progress func(done, of uint64)) error {
	var under []rpma.Op
	wait := func() error {
		_, err := under[0].Wait(ctx)
		under = under[1:]
		return err
	}
	for at := uint64(0); at < s.size; at += chunk {
		if len(under) == depth {
			if err := wait(); err != nil {
				return err
			}
		}
		n, place := min(chunk, s.size-at), longestAnswer+at%(depth*chunk)
		if _, err := from.ReadAt(s.memory.Bytes()[place:place+n], int64(at)); err == io.EOF {
			return truncated(from)
		} else if err != nil {
			return err
		}
		op, err := s.async.Write(to, at, s.memory, place, n)
		if err != nil {
			return err
		}
		under = append(under, op)
		progress(at, s.size)
	}
	for len(under) > 0 {
		if err := wait(); err != nil {
			return err
		}
	}
	progress(s.size, s.size)
	return nil
}

// finish reports that the file is written, and waits for the receiver's answer.
func (s *sender) finish(ctx context.Context) error {
	wc, err := s.exchange(ctx, 0)
	if err != nil {
		return err
	}
	code, _ := rpma.Immediate(&wc)
	said, known := answers[code]
	if !known {
		return fmt.Errorf("unknown answer %d of the receiver: it is not goverbs cp --listen of this version", code)
	}
	return said
}
