package rdma

// Verbs is a set of verbs of the data path.
type Verbs uint8

const (
	PostSend  Verbs = 1 << iota // ibv_post_send and the ibv_wr functions
	PostRecv                    // ibv_post_recv and ibv_post_srq_recv
	Poll                        // ibv_poll_cq and ibv_start_poll to ibv_end_poll
	ReqNotify                   // ibv_req_notify_cq
)

// Provider is what is known of a provider: which verbs it does in user space alone, without system calls, callbacks and waiting, so
// that they may be called without telling Go's scheduler.
type Provider struct {
	Name   string // as in the name of its shared object: "mlx5" for libmlx5.so.1 and libmlx5-rdmav34.so
	Pure   Verbs
	Reason string
}

// Providers is what is known. A provider that is not here is called in the way that is always right.
func Providers() []Provider { return append([]Provider(nil), providers...) }

var providers = []Provider{
	{"mlx5", PostSend | PostRecv | Poll | ReqNotify, "writes rings and doorbells"},
}

func pure(name string, verb Verbs, extra []Provider) bool {
	for _, list := range [][]Provider{extra, providers} {
		for _, p := range list {
			if p.Name == name {
				return p.Pure&verb == verb
			}
		}
	}
	return false
}

func providerOf(fn uintptr) string { return "" }
