// Command inlines is what a program does in its loops.
package main

import (
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/rdma"
)

func main() {
	var (
		q rdma.SendQueue
		r rdma.RecvQueue
		b rdma.SendBatch
		c rdma.RecvBatch
	)
	b.Reset()
	b.Write(1, 2, 3).SGE(4, 5, 6).Signaled()
	b.Read(1, 2, 3).Add(ibv.SGE{}).Flags(ibv.SEND_FENCE)
	b.Send(1).UD(2, 3, 4)
	b.WR(0).WRID = 2
	c.Recv(1).SGE(2, 3, 4)
	q.Post(&b)
	r.Post(&c)
}
