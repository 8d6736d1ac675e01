// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64 || loong64 || mips64 || mips64le || ppc64 || ppc64le || riscv64 || s390x

package native

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/uapi"
)

const deviceDir = "/dev/infiniband/"

func pkeyPath(device string, port uint8, index int32) string {
	return fmt.Sprintf("/sys/class/infiniband/%s/ports/%d/pkeys/%d", device, port, index)
}

func parsePKey(text []byte) (uint16, syscall.Errno) {
	v, err := strconv.ParseUint(strings.TrimSpace(string(text)), 0, 16)
	if err != nil {
		return 0, syscall.EINVAL
	}
	return uint16(v), 0
}

// Devices implements Kernel. It asks RDMA netlink, so it works without sysfs.
func (System) Devices() ([]DeviceInfo, error) {
	s, err := dialNetlink()
	if err != nil {
		return nil, fmt.Errorf("native: RDMA netlink: %w; is the module ib_core loaded?", err)
	}
	defer s.close()
	messages, err := s.ask(uapi.RDMA_NLDEV_CMD_GET, unix.NLM_F_DUMP, nil)
	if err != nil {
		return nil, fmt.Errorf("native: listing RDMA devices: %w", err)
	}
	var all []DeviceInfo
	for _, m := range messages {
		d := DeviceInfo{Index: int(number(m[uapi.RDMA_NLDEV_ATTR_DEV_INDEX])),
			Name:     cString(m[uapi.RDMA_NLDEV_ATTR_DEV_NAME]),
			NodeType: uint8(number(m[uapi.RDMA_NLDEV_ATTR_DEV_NODE_TYPE])),
			NodeGUID: number(m[uapi.RDMA_NLDEV_ATTR_NODE_GUID])}
		request := attribute(uapi.RDMA_NLDEV_ATTR_CHARDEV_TYPE, []byte("uverbs\x00"))
		request = append(request, attribute(uapi.RDMA_NLDEV_ATTR_DEV_INDEX,
			binary.NativeEndian.AppendUint32(nil, uint32(d.Index)))...)
		files, err := s.ask(uapi.RDMA_NLDEV_CMD_GET_CHARDEV, 0, request)
		if err != nil || len(files) == 0 { // ib_uverbs is not loaded
			continue
		}
		name := cString(files[0][uapi.RDMA_NLDEV_ATTR_CHARDEV_NAME])
		if name == "" || strings.ContainsRune(name, '/') {
			continue
		}
		d.Path = deviceDir + name
		d.Driver = uint32(number(files[0][uapi.RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID]))
		all = append(all, d)
	}
	return all, nil
}

// CopyOnFork implements Kernel.
func (System) CopyOnFork() bool {
	s, err := dialNetlink()
	if err != nil {
		return false
	}
	defer s.close()
	messages, err := s.ask(uapi.RDMA_NLDEV_CMD_SYS_GET, 0, nil)
	return err == nil && len(messages) > 0 && number(messages[0][uapi.RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK]) != 0
}

// netlink is a socket to RDMA netlink.
type netlink struct {
	fd  int
	seq uint32
}

func dialNetlink() (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &netlink{fd: fd}, nil
}

func (s *netlink) close() { unix.Close(s.fd) }

// message holds the attributes of a netlink message by type.
type message map[uapi.RDMANLDevAttr][]byte

const (
	headerLen   = unix.SizeofNlMsghdr
	attrHeader  = unix.SizeofNlAttr
	receiveRoom = 64 << 10
)

// ask sends a request and returns the messages of the answer.
func (s *netlink) ask(command uapi.RDMANLDevCommand, flags uint16, attrs []byte) ([]message, error) {
	s.seq++
	b := make([]byte, headerLen, headerLen+len(attrs))
	b = append(b, attrs...)
	e := binary.NativeEndian
	e.PutUint32(b[0:], uint32(len(b)))
	e.PutUint16(b[4:], uint16(uapi.RDMA_NL_NLDEV<<10|int(command)))
	e.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	e.PutUint32(b[8:], s.seq)
	if err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	var all []message
	room := make([]byte, receiveRoom)
	for {
		n, from, err := unix.Recvfrom(s.fd, room, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if from, ok := from.(*unix.SockaddrNetlink); !ok || from.Pid != 0 { // not from the kernel
			continue
		}
		for rest := room[:n]; len(rest) >= headerLen; {
			size := int(e.Uint32(rest))
			if size < headerLen || size > len(rest) {
				return nil, unix.EBADMSG
			}
			body, kind, seq := rest[headerLen:size], e.Uint16(rest[4:]), e.Uint32(rest[8:])
			rest = rest[min((size+3)&^3, len(rest)):]
			if seq != s.seq {
				continue
			}
			switch kind {
			case unix.NLMSG_DONE:
				return all, nil
			case unix.NLMSG_ERROR:
				if len(body) < 4 {
					return nil, unix.EBADMSG
				}
				if code := int32(e.Uint32(body)); code != 0 {
					return nil, syscall.Errno(-code)
				}
				return all, nil
			}
			all = append(all, parseAttributes(bytes.Clone(body))) // room is used again
		}
	}
}

// parseAttributes ends at the first malformed attribute.
func parseAttributes(b []byte) message {
	m := message{}
	for len(b) >= attrHeader {
		size, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < attrHeader || size > len(b) {
			break
		}
		const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		m[uapi.RDMANLDevAttr(kind&^flags)] = b[attrHeader:size]
		b = b[min((size+3)&^3, len(b)):]
	}
	return m
}

func attribute(kind uapi.RDMANLDevAttr, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, uint16(kind))
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

// number is the value of an integer attribute, or 0.
func number(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
