// SPDX-License-Identifier: BSD-2-Clause

// Package filecopy copies a file from the memory of one host into that of another: the sender writes from its mapping
// of the file into the receiver's, and the processors of the receiver have nothing to do but the checksum.
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
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

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

// offer is what a request for a connection says: the file's size and checksum.
type offer struct {
	size uint64
	sum  [sha256.Size]byte
}

// magic begins an offer, so that a request of another program is refused.
const magic = "gvcp0001"

func (o offer) marshal() []byte {
	b := binary.LittleEndian.AppendUint64([]byte(magic), o.size)
	return append(b, o.sum[:]...)
}

// parseOffer reads an offer, which is data of another host.
func parseOffer(b []byte) (o offer, err error) {
	size := len(magic) + 8 + sha256.Size
	if len(b) < size || string(b[:len(magic)]) != magic {
		return o, errors.New("the request is not one of goverbs cp")
	}
	o.size = binary.LittleEndian.Uint64(b[len(magic):])
	o.sum = [sha256.Size]byte(b[len(magic)+8 : size])
	return o, nil
}

// refusal begins what a receiver says in place of a descriptor, which begins with an address: none has these bytes.
const refusal = "gvno0001"

// refuse makes private data of the reason why a file is refused.
func refuse(why string) []byte {
	return []byte(refusal + why[:min(len(why), longestAnswer-len(refusal))])
}

// longestAnswer is how much private data an answer has, over InfiniBand and RoCE.
const longestAnswer = 196

// refused is the reason in private data, which another host chose, or nil.
func refused(private []byte) error {
	text, is := bytes.CutPrefix(private, []byte(refusal))
	if !is {
		return nil
	}
	text, _, _ = bytes.Cut(text, []byte{0})
	return fmt.Errorf("the receiver refuses the file: %s", strings.Trim(strconv.Quote(string(text)), `"`))
}

// connectTime limits each answer of a peer while the ends connect; tests shorten it. The connection manager of Linux
// sends a request again for longer than a minute.
var connectTime = 15 * time.Second

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
	if failed != nil && !errors.Is(failed, errStranger) && Leave != nil {
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
func Send(ctx context.Context, name, address string, progress func(done, of uint64)) (result *Result, err error) {
	var open opened
	defer func() { err = open.after(err) }()
	source, err := mapFile(name)
	if err != nil {
		return nil, err
	}
	open.add(source)
	peer, err := open.open(ctx, rpma.Remote, address)
	if err != nil {
		return nil, err
	}
	o := offer{uint64(len(source.bytes)), sha256.Sum256(source.bytes)}
	from, err := source.register(peer)
	if err != nil {
		return nil, err
	}
	if from != nil {
		open.add(from)
	}
	begin := time.Now()
	conn, err := connect(ctx, peer, address, o)
	if conn != nil {
		open.add(conn)
	}
	if err == nil {
		err = refused(conn.PrivateData())
	}
	if err != nil {
		return nil, err
	}
	async, err := conn.NewAsync(depth + 1)
	if err != nil {
		return nil, err
	}
	if err := send(ctx, async, conn.PrivateData(), from, o, progress); err != nil {
		return nil, err
	}
	return &Result{File: name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum[:]),
		Seconds: time.Since(begin).Seconds()}, nil
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
	host, _, _ := net.SplitHostPort(address)
	switch event := new(rpma.EventError); {
	case err == nil || ctx.Err() != nil:
	case soon.Err() != nil:
		err = fmt.Errorf("%s does not answer: start goverbs cp --listen there, on an adapter or with -d soft@%s, and "+
			"let UDP port 4791 through firewalls", address, host)
	case errors.As(err, &event) && event.Event == rpma.Rejected:
		err = fmt.Errorf("%s: %w: start goverbs cp --listen there", address, err)
	}
	return conn, err
}

// send writes all of the file to where the receiver's private data says, and waits for its answer.
func send(ctx context.Context, async *rpma.Async, private []byte, from *rpma.MR, o offer,
	progress func(done, of uint64)) error {
	if o.size > 0 {
		if len(private) < rpma.MRDescriptorSize {
			return errors.New("the receiver says no place for the file: it is no goverbs cp --listen")
		}
		to, err := rpma.ParseRemoteMR(private[:rpma.MRDescriptorSize])
		if err != nil {
			return err
		}
		if to.Len() < o.size {
			return fmt.Errorf("the receiver has room for %d bytes of %d", to.Len(), o.size)
		}
		if err := writeAll(ctx, async, to, from, o.size, progress); err != nil {
			return err
		}
	}
	// The receiver answers the message, so the receive is early enough.
	answer, err := async.Recv(nil, 0, 0)
	if err != nil {
		return err
	}
	done, err := async.SendWithImm(nil, 0, 0, arrived)
	if err != nil {
		return err
	}
	if _, err := done.Wait(ctx); err != nil {
		return err
	}
	wc, err := answer.Wait(ctx)
	if err != nil {
		return err
	}
	code, _ := rpma.Immediate(&wc)
	said, known := answers[code]
	if !known {
		return fmt.Errorf("the receiver answers %d, which means nothing: it is no goverbs cp --listen of this version",
			code)
	}
	return said
}

// writeAll keeps some writes under way, each of a chunk.
func writeAll(ctx context.Context, async *rpma.Async, to *rpma.RemoteMR, from *rpma.MR, size uint64,
	progress func(done, of uint64)) error {
	var under []rpma.Op
	wait := func() error {
		_, err := under[0].Wait(ctx)
		under = under[1:]
		return err
	}
	for at := uint64(0); at < size; at += chunk {
		if len(under) == depth {
			if err := wait(); err != nil {
				return err
			}
		}
		op, err := async.Write(to, at, from, at, min(chunk, size-at))
		if err != nil {
			return err
		}
		under = append(under, op)
		progress(at, size)
	}
	for len(under) > 0 {
		if err := wait(); err != nil {
			return err
		}
	}
	progress(size, size)
	return nil
}

// register registers the file for writes from it, or gives nil without data.
func (m *mapped) register(peer *rpma.Peer) (*rpma.MR, error) {
	if len(m.bytes) == 0 {
		return nil, nil
	}
	return peer.RegAddress(uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))), uint64(len(m.bytes)), rpma.WriteSrc)
}
