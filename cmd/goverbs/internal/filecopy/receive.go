// SPDX-License-Identifier: BSD-2-Clause

package filecopy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rpma"
)

// Receive waits at an address for one file, and stores it under a name of this side's choice, which must be free. It
// calls ready with the address when a sender may come. A file with more than most bytes is refused.
func Receive(ctx context.Context, address, name string, most uint64, ready func(address string)) (result *Result,
	err error) {
	if _, err := os.Lstat(name); !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is there already: remove it, or give another name", name)
	}
	if err := writable(filepath.Dir(name)); err != nil { // before somebody sends something
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
	for {
		result, err = receive(ctx, peer, endpoint, name, most)
		if !errors.Is(err, errStranger) {
			return result, err
		}
	}
}

// errStranger is the error of a request without an offer, or of one that its sender never confirmed: it is not what
// Receive waits for.
var errStranger = errors.New("not a sender of files")

// receive takes the next request.
func receive(ctx context.Context, peer *rpma.Peer, endpoint *rpma.Endpoint, name string, most uint64) (result *Result,
	err error) {
	var open opened
	defer func() { err = open.after(err) }()
	request, err := endpoint.NextConnRequest(ctx, config)
	if err != nil {
		return nil, err
	}
	open.add(request) // which is refused by that, unless it is answered
	o, err := parseOffer(request.PrivateData())
	if err != nil {
		return nil, errors.Join(errStranger, err)
	}
	begin := time.Now()
	if o.size > most {
		err := fmt.Errorf("a file of %d bytes is offered, and %d are the most (--most)", o.size, most)
		return nil, errors.Join(err, decline(ctx, request, err.Error()))
	}
	into, err := place(name, int64(o.size))
	if err != nil { // which names files of this host
		return nil, errors.Join(err, decline(ctx, request, fmt.Sprintf("it has no room for %d bytes", o.size)))
	}
	defer func() { err = errors.Join(err, into.discard()) }()
	if err := into.receive(ctx, peer, request, o); err != nil {
		return nil, err
	}
	return &Result{File: name, Bytes: o.size, SHA256: hex.EncodeToString(o.sum[:]),
		Seconds: time.Since(begin).Seconds()}, nil
}

// decline tells the sender why its file is refused: in the answer to its request, for a rejection has no reason that it
// would get.
func decline(ctx context.Context, request *rpma.ConnRequest, why string) error {
	conn, err := request.Connect(refuse(why))
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, quiet)
	defer cancel()
	_ = conn.WaitEstablished(soon) // the sender may have gone
	return conn.Close()
}

// writable says why no file can be made in a directory.
func writable(dir string) error {
	f, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// temporary is the pattern of names that files have before they are complete.
const temporary = ".goverbs-cp-*"

// destination is a file that nobody sees under its name before it is complete.
type destination struct {
	name, aside string
	file        *rpma.File // nil without data
}

// place makes room for a file of a size: blocks are allocated, for memory without a block behind it would end the
// program when the disk is full.
func place(name string, size int64) (*destination, error) {
	f, err := os.CreateTemp(filepath.Dir(name), temporary)
	if err != nil {
		return nil, err
	}
	d := &destination{name: name, aside: f.Name()}
	if size > 0 {
		err = allocate(f, size)
	}
	err = errors.Join(err, f.Close())
	if err == nil && size > 0 {
		d.file, err = rpma.OpenFile(d.aside, rpma.FileOptions{Size: size})
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(d.aside))
	}
	return d, nil
}

// discard removes what was not stored, and unmaps the file.
func (d *destination) discard() (err error) {
	if d.file != nil {
		err = d.file.Close()
	}
	if d.aside != "" {
		err = errors.Join(err, os.Remove(d.aside))
	}
	return err
}

// receive lets the sender write, compares, and stores.
func (d *destination) receive(ctx context.Context, peer *rpma.Peer, request *rpma.ConnRequest, o offer) (err error) {
	var open opened
	defer func() { err = open.after(err) }()
	var private []byte
	shut := func() error { return nil }
	defer func() { err = errors.Join(err, shut()) }()
	if d.file != nil {
		mr, err := peer.RegFile(d.file, rpma.WriteDst)
		if err != nil {
			return err
		}
		shut = sync.OnceValue(mr.Close)
		descriptor := mr.Descriptor()
		private = descriptor[:]
	}
	if err := request.Recv(nil, 0, 0, 0); err != nil {
		return err
	}
	conn, err := request.Connect(private)
	if err != nil {
		return err
	}
	open.add(conn)
	soon, cancel := context.WithTimeout(ctx, cm.DefaultHandshakeTimeout)
	defer cancel()
	if err := conn.WaitEstablished(soon); err != nil {
		if ctx.Err() == nil {
			err = errors.Join(errStranger, err)
		}
		return err
	}
	if err := heard(ctx, conn); err != nil && ctx.Err() == nil {
		return fmt.Errorf("the sender has gone: %w", err)
	} else if err != nil {
		return err
	}
	if err := shut(); err != nil { // what is compared cannot be written any more
		return err
	}
	answer, err := d.store(o)
	if sent := conn.SendWithImm(nil, 0, 0, rpma.Always, answer, 0); sent != nil {
		return errors.Join(err, sent)
	}
	return errors.Join(err, completion(ctx, conn))
}

// quiet is how long a sender may say nothing until it is asked whether it is there: nobody tells of one that was killed
// on a device in software, or whose host is gone. A test shortens it.
var quiet = 5 * time.Second

// heard waits for the message that the file is there. While none comes, writes without data show that the sender is:
// its device answers them, not its program.
func heard(ctx context.Context, conn *rpma.Conn) error {
	const probe = 1
	for asked := false; ; {
		soon, cancel := context.WithTimeout(ctx, quiet)
		var wcs [1]ibv.WC
		_, err := conn.CQ().Wait(soon, wcs[:])
		cancel()
		switch {
		case err == nil && wcs[0].WRID == probe && wcs[0].Status == ibv.WC_SUCCESS:
			asked = false
		case err == nil:
			return conn.CompletionErr(&wcs[0])
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		case !asked:
			if err := conn.Write(nil, 0, nil, 0, 0, rpma.Always, probe); err != nil {
				return err
			}
			asked = true
		}
	}
}

// completion waits for the one completion that is due.
func completion(ctx context.Context, conn *rpma.Conn) error {
	var wcs [1]ibv.WC
	if _, err := conn.CQ().Wait(ctx, wcs[:]); err != nil {
		return err
	}
	return conn.CompletionErr(&wcs[0])
}

// store compares what has arrived with the offer, and gives the file its name. The answer is for the sender.
func (d *destination) store(o offer) (answer uint32, err error) {
	var bytes []byte
	if d.file != nil {
		bytes = d.file.Bytes()
	}
	if sum := sha256.Sum256(bytes); sum != o.sum {
		return differs, fmt.Errorf("%s: what arrived has checksum %x, and the sender's file %x; nothing is stored",
			d.name, sum, o.sum)
	}
	if err := os.Link(d.aside, d.name); err != nil { // unlike a rename, it replaces nothing
		return unstored, err
	}
	return arrived, nil
}
