// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/internal/places"
	"github.com/goverbs/goverbs/rpma"
)

// Receive waits at an address for one file and stores it under name, which must not exist. It calls ready with the
// address once it listens, and refused with the reason when it rejects a request. It rejects files with more than most
// bytes. It handles several requests at once, with a limit per host; the first sender that confirms its request is
// accepted.
func Receive(ctx context.Context, address, name string, most uint64, ready func(address string),
	refused func(reason error)) (result *Result, err error) {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%q already exists; remove it or give another name", name)
	}
	if into, err := create(filepath.Dir(name)); err != nil { // fail before a sender connects
		return nil, err
	} else if err := into.discard(); err != nil {
		return nil, err
	}
	var open opened
	defer func() { err = open.after(err) }()
	peer, err := open.open(ctx, rpma.Local, address)
	if err != nil {
		return nil, err
	}
	endpoint, err := peer.Listen(ctx, address)
	if err != nil {
		return nil, err
	}
	open.add(endpoint)
	ready(endpoint.Addr().String())
	accepting, stop := context.WithCancel(ctx)
	defer stop()
	var accept, reporting sync.Mutex
	begin := func(size int64) (*destination, error) {
		accept.Lock()
		defer accept.Unlock()
		if err := accepting.Err(); err != nil {
			return nil, err
		}
		into, err := allocate(filepath.Dir(name), size)
		if err == nil {
			stop()
		}
		return into, err
	}
	var startErr error
	free := places.New(handshakes, handshakes)
	for {
		var request *rpma.ConnRequest
		if request, err = endpoint.NextConnRequest(accepting, config); err != nil {
			break
		}
		free.Go(accepting, request.PeerAddr().Addr(), func() {
			r := &receiver{peer: peer, name: name, most: most, begin: begin}
			received, err := r.serve(ctx, accepting, request)
			switch {
			case r.began:
				result, startErr = received, err
			case accepting.Err() == nil:
				reporting.Lock()
				defer reporting.Unlock()
				refused(err)
			}
		}, func() { _ = (&opened{request}).after(ctx.Err()) })
	}
	stop()
	free.Wait()
	if result != nil || startErr != nil {
		return result, startErr
	}
	return nil, err
}

// handshakes is the maximum number of unconfirmed requests; as many more wait.
const handshakes = 16

// receiver handles a request.
type receiver struct {
	peer *rpma.Peer
	name string
	most uint64
	// allocates the file for the accepted sender; other senders are rejected
	begin func(size int64) (*destination, error)
	conn  *rpma.Conn
	began bool
}

// serve handles a request and closes it. accepting ends once another sender has been accepted.
func (r *receiver) serve(ctx, accepting context.Context, request *rpma.ConnRequest) (result *Result, err error) {
	var open opened
	defer func() {
		if r.began || ctx.Err() != nil {
			err = open.after(err)
		} else {
			err = errors.Join(err, open.Close()) // wait for another request
		}
	}()
	open.add(request) // closing an unanswered request rejects it
	o, err := parseOffer(request.PrivateData())
	if err != nil {
		return nil, err
	}
	start := time.Now()
	memory, err := r.peer.RegMR(make([]byte, longestAnswer), rpma.SendSrc)
	if err != nil {
		return nil, err
	}
	open.add(memory)
	if err := request.Recv(nil, 0, 0, received); err != nil {
		return nil, err
	}
	if r.conn, err = request.Connect(nil); err != nil {
		return nil, err
	}
	open.add(r.conn)
	if err := r.confirmed(accepting); err != nil {
		return nil, fmt.Errorf("sender did not confirm its request: %w", err)
	}
	if o.size > r.most {
		err := fmt.Errorf("file of %d bytes exceeds %d (--most)", o.size, r.most)
		return nil, errors.Join(err, r.refuse(accepting, memory, err.Error()))
	}
	into, err := r.begin(int64(o.size))
	if err != nil && accepting.Err() != nil {
		return nil, err
	}
	if err != nil { // the error names local files, so the sender gets another text
		return nil, errors.Join(err, r.refuse(accepting, memory, fmt.Sprintf("no space for %d bytes", o.size)))
	}
	defer func() { err = errors.Join(err, into.discard()) }()
	r.began = true
	if err := r.receive(ctx, into, memory, o); err != nil {
		return nil, err
	}
	return &Result{File: r.name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum[:]),
		Seconds: time.Since(start).Seconds()}, nil
}

// confirmed waits for the sender's first message. Nothing is allocated for the request before.
func (r *receiver) confirmed(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	if err := r.conn.WaitEstablished(limited); err != nil {
		return err
	}
	return r.await(limited, received)
}

// refuse sends the reason of a refusal.
func (r *receiver) refuse(ctx context.Context, memory *rpma.MR, reason string) error {
	n := copy(memory.Bytes(), refusal+reason)
	if err := r.conn.Send(memory, 0, uint64(n), rpma.Always, sent); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	return r.await(limited, sent)
}

// temporary is the name pattern of incomplete files.
const temporary = ".goverbs-cp-*"

// destination is an incomplete file.
type destination struct {
	file   *os.File
	aside  string     // temporary name, or ""
	mapped *rpma.File // nil for an empty file
}

// allocate creates a file of the given size. The file stays open until complete, since its name could be replaced.
func allocate(dir string, size int64) (*destination, error) {
	d, err := create(dir)
	if err != nil || size == 0 {
		return d, err
	}
	if d.mapped, err = rpma.MapFile(d.file, rpma.FileOptions{Size: size}); err != nil {
		return nil, errors.Join(err, d.discard())
	}
	return d, nil
}

// discard closes the file and removes it if it was not stored.
func (d *destination) discard() (err error) {
	if d.mapped != nil {
		err = d.mapped.Close()
	} else {
		err = d.file.Close()
	}
	if d.aside != "" { // by name: whoever can replace the file can also remove it
		err = errors.Join(err, os.Remove(d.aside))
	}
	return err
}

// receive waits for the data, compares the checksums and stores the file.
func (r *receiver) receive(ctx context.Context, d *destination, memory *rpma.MR, o offer) (err error) {
	n := copy(memory.Bytes(), acceptance)
	shut := func() error { return nil }
	defer func() { err = errors.Join(err, shut()) }()
	if d.mapped != nil {
		mr, err := r.peer.RegFile(d.mapped, rpma.WriteDst)
		if err != nil {
			return err
		}
		shut = sync.OnceValue(mr.Close)
		descriptor := mr.Descriptor()
		n += copy(memory.Bytes()[n:], descriptor[:])
	}
	if err := r.conn.Recv(nil, 0, 0, received); err != nil {
		return err
	}
	if err := r.conn.Send(memory, 0, uint64(n), rpma.OnError, sent); err != nil {
		return err
	}
	if err := r.await(ctx, received); err != nil && ctx.Err() == nil {
		return fmt.Errorf("connection to the sender lost: %w", err)
	} else if err != nil {
		return err
	}
	if err := shut(); err != nil { // after this, the sender can no longer write
		return err
	}
	answer, err := d.store(r.name, o)
	if bad := r.conn.SendWithImm(nil, 0, 0, rpma.Always, answer, sent); bad != nil {
		return errors.Join(err, bad)
	}
	return errors.Join(err, r.await(ctx, sent))
}

// probeInterval is the time without a completion after which the peer is probed: no event reports a peer that was
// killed on a software device, or whose host is down. A test shortens it.
var probeInterval = 5 * time.Second

// confirmTime bounds the wait for a sender to confirm its request or receive a refusal. A test changes it.
var confirmTime = 5 * time.Second

// Work request IDs.
const (
	received = iota
	sent
	probe
)

// await waits for an operation to complete. While nothing completes, it probes the sender with empty writes, which the
// sender's device acknowledges.
func (r *receiver) await(ctx context.Context, id uint64) error {
	for asked := false; ; {
		limited, cancel := context.WithTimeout(ctx, probeInterval)
		var wcs [1]ibv.WC
		_, err := r.conn.CQ().Wait(limited, wcs[:])
		cancel()
		switch {
		case err == nil && wcs[0].Status != ibv.WC_SUCCESS:
			return r.conn.CompletionErr(&wcs[0])
		case err == nil && wcs[0].WRID == id:
			return nil
		case err == nil:
			asked = asked && wcs[0].WRID != probe
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		case !asked:
			if err := r.conn.Write(nil, 0, nil, 0, 0, rpma.Always, probe); err != nil {
				return err
			}
			asked = true
		}
	}
}

// store compares the data with the offer and gives the file its name. It returns the answer for the sender.
func (d *destination) store(name string, o offer) (answer uint32, err error) {
	sum, err := checksum(d.file, o.size)
	if err != nil {
		return unstored, err
	}
	if sum != o.sum {
		return differs, fmt.Errorf("%q: received data has checksum %x, the sender's file %x; not stored", name,
			sum, o.sum)
	}
	if err := d.link(name); err != nil {
		return unstored, err
	}
	return arrived, nil
}
