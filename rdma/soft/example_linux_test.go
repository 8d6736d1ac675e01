// SPDX-License-Identifier: BSD-2-Clause

package soft_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

	"github.com/goverbs/goverbs/rdma/soft"
	"github.com/goverbs/goverbs/rdma/stream"
)

// Capture the packets of a connection for Wireshark. A real program writes to a file.
func ExampleFabric_Capture() {
	ctx := context.Background()
	at := func(address string) *soft.Fabric {
		device := soft.DeviceOptions{Address: netip.MustParseAddr(address), Wire: true}
		return must(soft.New(soft.Options{Devices: []soft.DeviceOptions{device}}))
	}
	local, remote := at("127.0.0.91"), at("127.0.0.92")
	listener := must(listening(stream.Config{Backend: remote}).Listen(ctx, "127.0.0.92:80"))

	var file bytes.Buffer
	capture := must(local.Capture(&file))
	conn := must(dialer(stream.Config{Backend: local}).Dial(ctx, "127.0.0.92:80"))
	accepted := must(listener.Accept())
	fmt.Println("connections:", len(local.Connections()))
	check(accepted.Close())
	check(conn.Close())
	check(capture.Close())

	written, lost := capture.Counts()
	fmt.Println("captured:", written > 0, "lost:", lost)
	fmt.Println("dropped for a wrong checksum:", local.HWCounters("soft0")["rx_icrc_encapsulated"])
	check(listener.Close())
	check(local.Close())
	check(remote.Close())
	// Output:
	// connections: 1
	// captured: true lost: 0
	// dropped for a wrong checksum: 0
}
