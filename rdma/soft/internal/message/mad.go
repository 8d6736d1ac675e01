package message

// MAD is a management datagram: what connection managers say to each other.
type MAD struct {
	From, To Address
}
