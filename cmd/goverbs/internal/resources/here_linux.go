// SPDX-License-Identifier: BSD-2-Clause

package resources

import (
	"encoding/binary"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/goverbs/goverbs/generated/uapi"
)

// Here returns this host.
func Here() *Host { return &Host{FS: os.DirFS("/"), Ask: queryKernel} }

// requestAttrs lists the attributes that identify the object of a request.
var requestAttrs = []uapi.RDMANLDevAttr{uapi.RDMA_NLDEV_ATTR_DEV_INDEX, uapi.RDMA_NLDEV_ATTR_PORT_INDEX,
	uapi.RDMA_NLDEV_ATTR_STAT_RES}

// queryKernel queries this host's kernel. A request without a port is a dump, answered in several messages.
func queryKernel(command uapi.RDMANLDevCommand, of ...uint32) ([][]byte, error) {
	flags := unix.NLM_F_DUMP
	if len(of) == 2 {
		flags = 0
	}
	r := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|int(command), flags)
	for i, n := range of {
		if i == 1 && len(of) == 3 { // all ports
			continue
		}
		r.AddData(nl.NewRtAttr(int(requestAttrs[i]), binary.NativeEndian.AppendUint32(nil, n)))
	}
	return r.Execute(unix.NETLINK_RDMA, 0)
}
