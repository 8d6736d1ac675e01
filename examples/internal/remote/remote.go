// SPDX-License-Identifier: BSD-2-Clause

// Package remote is shared by the examples of package rpma: a server offers the memory of a file, and a client changes
// it atomically: after a crash, the memory has either the old or the new state.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rpma"
)

// replySize is the size of the private data in a server's reply: the descriptors of its memory and of its
// configuration.
const replySize = rpma.MRDescriptorSize + rpma.PeerConfigDescriptorSize

// opened lists objects in the order of their creation.
type opened []io.Closer

// Close closes the objects in reverse order.
func (o *opened) Close() (err error) {
	for _, c := range slices.Backward(*o) {
		err = errors.Join(err, c.Close())
	}
	*o = nil
	return err
}

// Server offers the memory of a file to any number of clients, which read and write it directly.
type Server struct {
	opened   opened
	endpoint *rpma.Endpoint
	stop     context.CancelFunc
	workers  sync.WaitGroup
}

// Serve opens a file, grows it to at least size bytes, and listens at "host:port" of a device. The Server owns the
// device.
func Serve(ctx context.Context, device *rpma.Device, address, name string, size int64) (*Server, error) {
	s := &Server{opened: opened{device}, stop: func() {}}
	if err := s.open(ctx, device, address, name, size); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context, device *rpma.Device, address, name string, size int64) error {
	file, err := rpma.OpenFile(name, rpma.FileOptions{Size: size})
	if err != nil {
		return err
	}
	s.opened = append(s.opened, file)
	peer, err := rpma.NewPeer(device, rpma.PeerOptions{})
	if err != nil {
		return err
	}
	s.opened = append(s.opened, peer)
	mr, err := peer.RegFile(file, rpma.ReadSrc|rpma.WriteDst|file.FlushUsage())
	if err != nil {
		return err
	}
	s.opened = append(s.opened, mr)
	if s.endpoint, err = peer.Listen(ctx, address); err != nil {
		return err
	}
	s.opened = append(s.opened, s.endpoint)
	descriptor, config := mr.Descriptor(), file.Config().Descriptor()
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	s.workers.Go(func() { s.accept(ctx, append(descriptor[:], config[:]...)) })
	return nil
}

// Address returns the "host:port" for clients.
func (s *Server) Address() string { return s.endpoint.Addr().String() }

func (s *Server) accept(ctx context.Context, reply []byte) {
	for ctx.Err() == nil {
		conn, err := s.endpoint.Accept(ctx, nil, reply)
		if err != nil { // the client has disconnected, or ctx has ended
			continue
		}
		s.workers.Go(func() {
			conn.NextEvent(ctx) // Closed, or Lost
			conn.Close()
		})
	}
}

// Close ends all connections and closes the file.
func (s *Server) Close() error {
	s.stop()
	s.workers.Wait()
	return s.opened.Close()
}

// Memory is the memory of a server's file.
type Memory struct {
	opened opened
	conn   *rpma.Conn
	to     *rpma.RemoteMR
	local  *rpma.MR
	batch  *rpma.Batch
	flush  rpma.FlushType
	wcs    []ibv.WC
}

// Dial connects to a server at "host:port" over a device, which the Memory owns. room is the largest transfer in bytes.
func Dial(ctx context.Context, device *rpma.Device, address string, room int) (*Memory, error) {
	m := &Memory{opened: opened{device}, wcs: make([]ibv.WC, 1)}
	if err := m.open(ctx, device, address, room); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Memory) open(ctx context.Context, device *rpma.Device, address string, room int) error {
	peer, err := rpma.NewPeer(device, rpma.PeerOptions{})
	if err != nil {
		return err
	}
	m.opened = append(m.opened, peer)
	if m.local, err = peer.RegMR(make([]byte, room), rpma.ReadDst|rpma.WriteSrc); err != nil {
		return err
	}
	m.opened = append(m.opened, m.local)
	if m.conn, err = peer.Connect(ctx, address, nil, nil); err != nil {
		return err
	}
	m.opened = append(m.opened, m.conn)
	if m.batch, err = m.conn.NewBatch(4); err != nil {
		return err
	}
	m.opened = append(m.opened, m.batch)
	reply := m.conn.PrivateData()
	if len(reply) < replySize {
		return fmt.Errorf("%s is not a server of these examples", address)
	}
	if m.to, err = rpma.ParseRemoteMR(reply[:rpma.MRDescriptorSize]); err != nil {
		return err
	}
	config, err := rpma.ParsePeerConfig(reply[rpma.MRDescriptorSize:replySize])
	if err != nil {
		return err
	}
	m.conn.ApplyRemotePeerConfig(config)
	m.flush = rpma.Visibility
	if config.DirectWriteToPmem && m.to.FlushTypes()&rpma.FlushPersistent != 0 {
		m.flush = rpma.Persistent
	}
	return nil
}

// Flush returns the guarantee of the server's memory after a flush: persistence, or only visibility. Visible data
// survives the server's process, but not a power failure.
func (m *Memory) Flush() rpma.FlushType { return m.flush }

// Len returns the size of the memory.
func (m *Memory) Len() uint64 { return m.to.Len() }

// Close disconnects.
func (m *Memory) Close() error { return m.opened.Close() }

// Read reads n bytes at an offset. The result is valid until the next call.
func (m *Memory) Read(ctx context.Context, offset, n uint64) ([]byte, error) {
	if err := m.conn.Read(m.local, 0, m.to, offset, n, rpma.Always, 0); err != nil {
		return nil, err
	}
	return m.local.Bytes()[:n], m.done(ctx)
}

// Publish writes and flushes data at an offset, and then writes 8 bytes at offset at, which make the data valid. After
// a crash, either the 8 bytes are unchanged, or they and all of the data have been written. data must be a slice of
// Buffer.
func (m *Memory) Publish(ctx context.Context, offset uint64, data []byte, at uint64, valid [8]byte) error {
	m.batch.Reset()
	n := uint64(len(data))
	err := errors.Join(
		m.batch.Write(m.to, offset, m.local, 0, n, rpma.OnError, 0),
		m.batch.Flush(m.to, offset, n, m.flush, rpma.OnError, 0),
		m.batch.AtomicWrite(m.to, at, valid, rpma.OnError, 0),
		m.batch.Flush(m.to, at, 8, m.flush, rpma.Always, 0))
	if err != nil {
		return err
	}
	if _, err := m.batch.Post(); err != nil {
		return err
	}
	return m.done(ctx)
}

// Buffer returns the memory for the data of Publish.
func (m *Memory) Buffer() []byte { return m.local.Bytes() }

// done waits for the completion of the operation in progress.
func (m *Memory) done(ctx context.Context) error {
	if _, err := m.conn.CQ().Wait(ctx, m.wcs); err != nil {
		return err
	}
	return m.conn.CompletionErr(&m.wcs[0])
}

// Both starts a server on a software device of this process and connects to it.
func Both(ctx context.Context, name string, size int64, room int) (*Server, *Memory, error) {
	fabric, err := soft.Default()
	if err != nil {
		return nil, nil, err
	}
	there, err := rpma.FindDeviceOn(ctx, fabric, rpma.Local, "soft1")
	if err != nil {
		return nil, nil, err
	}
	server, err := Serve(ctx, there, "soft1:0", name, size)
	if err != nil {
		return nil, nil, err
	}
	here, err := rpma.FindDeviceOn(ctx, fabric, rpma.Local, "soft0")
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	memory, err := Dial(ctx, here, server.Address(), room)
	if err != nil {
		return nil, nil, errors.Join(err, server.Close())
	}
	return server, memory, nil
}
