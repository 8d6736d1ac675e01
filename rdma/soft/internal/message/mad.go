package message

// MAD is a management datagram: what connection managers say to each other.
type MAD struct {
	From, To Address
}

// Clone is a copy that outlives the call that brought the datagram.
func (m *MAD) Clone() *MAD {
	c := *m
	return &c
}
