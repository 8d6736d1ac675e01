package message

// Segment is a range of memory of this process, by address. It is not to be kept beyond the message that has it.
type Segment struct {
	Base   uint64 // 0 is memory that reads as zeros and takes any write
	Length uint64
}

// Skip leaves out the first n bytes.
func (s *Segment) Skip(n uint64) {
	if s.Base != 0 {
		s.Base += n
	}
	s.Length -= n
}
