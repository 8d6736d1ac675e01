package rdma

import "github.com/goverbs/goverbs/generated/ibv"

// inlined is never called. The compiler puts the body of a function of another package into this one's export data only if it inlines the function
// here. A program that uses the types of package wq under their names here would otherwise inline none of their methods, for which many of
// them are short: posting costs a third more then. conformance/house looks after it.
func inlined() {
	var (
		send  SendBatch
		recv  RecvBatch
		tags  TagBatch
		sq    SendQueue
		rq    RecvQueue
		cq    CompletionQueue
		xsq   ExclusiveSendQueue
		xrq   ExclusiveRecvQueue
		xcq   ExclusiveCompletionQueue
		wrs   WRProgram
		entry ibv.SGE
	)
	sq.Post(&send)
	sq.PostRange(&send, 0, 1)
	sq.Retire(nil)
	rq.Post(&recv)
	rq.PostRange(&recv, 0, 1)
	rq.Retire(nil)
	cq.ReqNotify(false)
	xsq.Post(&send)
	xsq.PostRange(&send, 0, 1)
	xrq.Post(&recv)
	xrq.PostRange(&recv, 0, 1)
	xcq.ReqNotify(false)

	send.Reset()
	send.Len()
	send.Cap()
	send.WR(0)
	send.WRs()
	send.SGEs(0)
	send.Fill(1)
	send.Send(0)
	send.SendImm(0, 0)
	send.SendInv(0, 0)
	send.LocalInv(0, 0)
	send.Driver(0)
	send.Write(0, 0, 0)
	send.Read(0, 0, 0)
	send.CompareSwap(0, 0, 0, 0, 0)
	send.FetchAdd(0, 0, 0, 0)
	var s SendRequest
	s = s.SGE(0, 0, 0)
	s = s.Add(entry)
	s = s.Flags(0)
	s = s.Signaled()
	s = s.UD(0, 0, 0)
	s = s.XRC(0)
	s.Index()

	recv.Reset()
	recv.Len()
	recv.Cap()
	recv.WR(0)
	recv.WRs()
	recv.SGEs(0)
	r := recv.Recv(0)
	r = r.SGE(0, 0, 0)
	r = r.Add(entry)
	r.Index()

	tags.Reset()
	tags.Len()
	t := tags.Add(0, 0, 0, 0)
	tags.Del(0, 0)
	tags.Sync(0, 0)
	t = t.SGE(0, 0, 0)
	t = t.Signaled()
	t.Unexpected(0)

	wrs.Len()
	wrs.Err()
}

var _ = inlined
