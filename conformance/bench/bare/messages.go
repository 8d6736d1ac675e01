// SPDX-License-Identifier: BSD-2-Clause

//go:build linux

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	dataSize  = 4096
	segment   = 12 + 16 + dataSize + 4 + 8 // headers, data and CRC, and 8 bytes for the number of the burst
	perBurst  = 65507 / segment            // datagrams per system call
	burstCost = 72 << 10                   // maximum receive buffer accounting for a burst
	answer    = 1 << 63                    // flag in the number of a burst: acknowledge this burst
)

// offload enables segmentation offload, and returns how many bursts fit in the receive buffer.
func offload(c *net.UDPConn) (window int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := raw.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			return
		}
		for _, buffer := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
			if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, buffer, 8<<20); err != nil {
				return
			}
		}
		size, _ := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
		window = size / burstCost
	})
	return window, errors.Join(err, failed)
}

// sendMessages sends messages until the time is over, and returns the number of messages that arrived.
func sendMessages(c *net.UDPConn, to netip.AddrPort, long time.Duration) (int, error) {
	window, err := offload(c) // the peer process gets the same buffer size
	if err != nil {
		return 0, err
	}
	window = max(1, min(window, 64))
	control := make([]byte, unix.CmsgSpace(2))
	message := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	message.Level, message.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	message.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(control[unix.CmsgLen(0):], segment)

	burst, ack := make([]byte, perBurst*segment), make([]byte, 8)
	var sent, acked uint64
	acknowledged := func() error {
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, _, err := c.ReadFromUDPAddrPort(ack); err != nil {
			return fmt.Errorf("after %d bursts of %d, window %d: %w", acked, sent, window, err)
		}
		acked = binary.BigEndian.Uint64(ack)
		return nil
	}
	for n, start := 0, time.Now(); ; n++ {
		if time.Since(start) > long {
			for acked < sent {
				if err := acknowledged(); err != nil {
					return n, err
				}
			}
			return n, nil
		}
		for left := messageSize / dataSize; left > 0; {
			datagrams := min(left, perBurst)
			left -= datagrams
			for sent-acked >= uint64(window) {
				if err := acknowledged(); err != nil {
					return n, err
				}
			}
			sent++
			number := sent
			if left == 0 || sent%uint64(max(1, window/8)) == 0 {
				number |= answer
			}
			for i := range datagrams {
				d := burst[i*segment:][:segment]
				binary.BigEndian.PutUint64(d, number)
				binary.LittleEndian.PutUint32(d[segment-4:], crc32.ChecksumIEEE(d[:segment-4]))
			}
			if _, _, err := c.WriteMsgUDPAddrPort(burst[:datagrams*segment], control, to); err != nil {
				return n, err
			}
		}
	}
}

// receiveMessages checks every datagram, and acknowledges bursts with the number of the last one.
func receiveMessages(c *net.UDPConn, window int) error {
	b, control, ack := make([]byte, 1<<16), make([]byte, 128), make([]byte, 8)
	var last uint64
	for {
		n, _, _, from, err := c.ReadMsgUDPAddrPort(b, control)
		if err != nil {
			return err
		}
		number := uint64(0)
		for d := b[:n]; len(d) > 0; d = d[segment:] {
			if len(d) < segment || crc32.ChecksumIEEE(d[:segment-4]) != binary.LittleEndian.Uint32(d[segment-4:]) {
				return fmt.Errorf("burst %d: %w", last+1, os.ErrInvalid)
			}
			number = binary.BigEndian.Uint64(d)
		}
		burst := number &^ answer
		if burst > last+1 {
			return fmt.Errorf("bursts %d to %d were lost: the receive buffer holds less than %d", last+1, burst-1,
				window)
		}
		last = burst
		if number&answer == 0 {
			continue
		}
		binary.BigEndian.PutUint64(ack, last)
		if _, err := c.WriteToUDPAddrPort(ack, from); err != nil {
			return err
		}
	}
}
