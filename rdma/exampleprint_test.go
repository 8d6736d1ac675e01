// SPDX-License-Identifier: BSD-2-Clause

package rdma_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Log objects, completions and values in readable form, and parse values from JSON by name.
func Example_logs() {
	fabric := must(soft.New(soft.Options{}))
	defer fabric.Close()
	device := must(rdma.OpenOn(fabric, "soft0"))
	defer device.Close()
	qp := must(device.NewRC(rdma.QPParts{}))
	defer qp.Close()

	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	logger.Info("made", "qp", qp, "state", qp.State())
	wc := ibv.WC{WRID: 7, QPNum: qp.Num(), Opcode: ibv.WC_RDMA_READ, ByteLen: 64}
	logger.Info("polled", "wc", wc)

	var options struct {
		Type   ibv.QPType
		Access ibv.AccessFlags
		Peer   ibv.GID
	}
	check(json.Unmarshal([]byte(`{"Type": "QPT_UC", "Access": "ACCESS_LOCAL_WRITE|ACCESS_REMOTE_READ",
		"Peer": "fe80:0000:0000:0000:0002:c903:00a1:b2c3"}`), &options))
	fmt.Println(options.Type, options.Access, options.Peer)
	fmt.Println(string(must(json.Marshal(options))))
	// Output:
	// level=INFO msg=made qp="QP 0x11 (RC) on soft0" state=IBV_QPS_RESET
	// level=INFO msg=polled wc="QP 0x11: WR id 0x7: IBV_WC_RDMA_READ, 64 bytes"
	// IBV_QPT_UC IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ fe80::2:c903:a1:b2c3
	// {"Type":"IBV_QPT_UC","Access":"IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ","Peer":"fe80::2:c903:a1:b2c3"}
}

// withoutTime removes the time, so that the output is reproducible.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
