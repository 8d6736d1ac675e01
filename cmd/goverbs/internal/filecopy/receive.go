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

// Receive waits at an address for one file, and stores it under a name of this side's choice, which must be free. It
// calls ready with the address when a sender may come, and refused with the reason why a request was refused. A file
// with more than most bytes is refused. Receive answers several requests at once, and a limited number for each host;
// the first sender that confirms its request is the one whose file it receives.
func Receive(ctx context.Context, address, name string, most uint64, ready func(address string),
	refused func(why error)) (result *Result, err error) {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%q is there already: remove it, or give another name", name)
	}
	if into, err := create(filepath.Dir(name)); err != nil { // before a sender comes
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
	var choice, telling sync.Mutex
	begin := func(size int64) (*destination, error) {
		choice.Lock()
		defer choice.Unlock()
		if err := accepting.Err(); err != nil {
			return nil, err
		}
		into, err := place(filepath.Dir(name), size)
		if err == nil {
			stop()
		}
		return into, err
	}
	var began error
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
				result, began = received, err
			case accepting.Err() == nil:
				telling.Lock()
				defer telling.Unlock()
				refused(err)
			}
		}, func() { _ = (&opened{request}).after(ctx.Err()) })
	}
	stop()
	free.Wait()
	if result != nil || began != nil {
		return result, began
	}
	return nil, err
}

// handshakes is how many senders may be about to confirm their requests at once; as many wait for one of these places.
const handshakes = 16

// receiver answers a request.
type receiver struct {
	peer  *rpma.Peer
	name  string
	most  uint64
	begin func(size int64) (*destination, error) // makes room for one sender's file; then Receive takes no other
	conn  *rpma.Conn
	began bool
}

// serve receives a file of a request, which it closes. accepting ends when Receive takes no file any more but one that
// has begun.
func (r *receiver) serve(ctx, accepting context.Context, request *rpma.ConnRequest) (result *Result, err error) {
	var open opened
	defer func() {
		if r.began || ctx.Err() != nil {
			err = open.after(err)
		} else {
			err = errors.Join(err, open.Close()) // another request may come
		}
	}()
	open.add(request) // which is refused by that, unless it is answered
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
		return nil, fmt.Errorf("the sender does not confirm its request: %w", err)
	}
	if o.size > r.most {
		err := fmt.Errorf("a file of %d bytes is offered, and %d are the most (--most)", o.size, r.most)
		return nil, errors.Join(err, r.refuse(accepting, memory, err.Error()))
	}
	into, err := r.begin(int64(o.size))
	if err != nil && accepting.Err() != nil {
		return nil, err
	}
	if err != nil { // which names files of this host
		return nil, errors.Join(err, r.refuse(accepting, memory, fmt.Sprintf("it has no room for %d bytes", o.size)))
	}
	defer func() { err = errors.Join(err, into.discard()) }()
	r.began = true
	if err := r.receive(ctx, into, memory, o); err != nil {
		return nil, err
	}
	return &Result{File: r.name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum[:]),
		Seconds: time.Since(start).Seconds()}, nil
}

// confirmed waits for the sender's first message. Before it, nothing is allocated for the request.
func (r *receiver) confirmed(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	if err := r.conn.WaitEstablished(soon); err != nil {
		return err
	}
	return r.await(soon, received)
}

// refuse tells the sender why its file is refused.
func (r *receiver) refuse(ctx context.Context, memory *rpma.MR, why string) error {
	n := copy(memory.Bytes(), refusal+why)
	if err := r.conn.Send(memory, 0, uint64(n), rpma.Always, sent); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, confirmTime)
	defer cancel()
	return r.await(soon, sent)
}

// temporary is the pattern of names that files have before they are complete.
const temporary = ".goverbs-cp-*"

// destination is a file that is not complete.
type destination struct {
	file   *os.File
	aside  string     // its name until it is complete, or ""
	mapped *rpma.File // nil without data
}

// place makes room for a file of a size. The file stays open until it is complete: a name could lead elsewhere.
func place(dir string, size int64) (*destination, error) {
	d, err := create(dir)
	if err != nil || size == 0 {
		return d, err
	}
	if d.mapped, err = rpma.MapFile(d.file, rpma.FileOptions{Size: size}); err != nil {
		return nil, errors.Join(err, d.discard())
	}
	return d, nil
}

// discard closes the file, and removes what was not stored.
func (d *destination) discard() (err error) {
	if d.mapped != nil {
		err = d.mapped.Close()
	} else {
		err = d.file.Close()
	}
	if d.aside != "" { // by name: whoever can put another file there can remove that one as well
		err = errors.Join(err, os.Remove(d.aside))
	}
	return err
}

// receive lets the sender write, compares, and stores.
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
		return fmt.Errorf("the sender has gone: %w", err)
	} else if err != nil {
		return err
	}
	if err := shut(); err != nil { // what is compared cannot be written any more
		return err
	}
	answer, err := d.store(r.name, o)
	if bad := r.conn.SendWithImm(nil, 0, 0, rpma.Always, answer, sent); bad != nil {
		return errors.Join(err, bad)
	}
	return errors.Join(err, r.await(ctx, sent))
}

// quiet is the time without a completion after which the peer is probed: no event reports one that was killed on a
// software device, or whose host is gone. A test shortens it.
var quiet = 5 * time.Second

// confirmTime is the time that a sender has to confirm its request, and to take a refusal. A test changes it.
var confirmTime = 5 * time.Second

// IDs of operations.
const (
	received = iota
	sent
	probe
)

// await waits for an operation to complete. While nothing completes, writes without data show that the sender is there:
// its device answers them, not its program.
func (r *receiver) await(ctx context.Context, id uint64) error {
	for asked := false; ; {
		soon, cancel := context.WithTimeout(ctx, quiet)
		var wcs [1]ibv.WC
		_, err := r.conn.CQ().Wait(soon, wcs[:])
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

// store compares what has arrived with the offer, and gives the file its name. The answer is for the sender.
func (d *destination) store(name string, o offer) (answer uint32, err error) {
	sum, err := checksum(d.file, o.size)
	if err != nil {
		return unstored, err
	}
	if sum != o.sum {
		return differs, fmt.Errorf("%q: what arrived has checksum %x, and the sender's file %x; nothing is stored", name,
			sum, o.sum)
	}
	if err := d.link(name); err != nil {
		return unstored, err
	}
	return arrived, nil
}
