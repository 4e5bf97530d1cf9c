# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What a segment's head says about its rows; the signatures and what callers must know stand in `_commits.pyi`."""

from hashlib import blake2b

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from parl_mq.replay._arrays cimport address
from parl_mq.replay._shard cimport Counts


cdef extern from * nogil:
    """
    #include <cstdint>

    // parl_mq.replay.commits describes the same bytes.
    struct Head {
        uint8_t identity[64];
        int64_t tail, reserved, committed, num_live;
        uint64_t newest;  // number of the newest commit that was written to its end
        double max_magnitude;
        int64_t drawn, updated, stale, torn;
        double max_magnitude_again;  // the same, for a reader that wants to know that neither is damaged
        uint64_t counts_checksum;    // of the four in front
        int64_t spare[4];
        int64_t words[8];
    };
    static_assert(sizeof(Head) == 256, "the commit records follow at byte 256");

    struct Sender {
        uint64_t name[2];
        int64_t epoch, sequence, rows, num_bytes;
        uint64_t number;
        uint64_t checksum;
    };
    static_assert(sizeof(Sender) == 64, "an entry of the sender table has 64 bytes");

    struct Record {
        uint64_t number;
        int64_t committed, tail, num_live, num_inserted;
        double max_magnitude;
        int64_t slot;       // of the sender; -1: nobody's
        int64_t unused;
        Sender sender;      // its last word is the record's checksum
    };
    static_assert(sizeof(Record) == 128, "a commit record has 128 bytes");

    // What an insert is about to do: take the positions up to `end`, and give up those in front of `tail`.
    struct Plan {
        uint64_t number;
        int64_t end, tail;
        uint64_t checksum;
    };
    static_assert(sizeof(Plan) == 32, "a plan has 32 bytes");

    // Each step is a bijection of the word that it takes in: one changed word changes the result for certain.
    static inline uint64_t checksum_of(const void *start, int64_t num_words) {
        const uint64_t *word = static_cast<const uint64_t *>(start);
        uint64_t sum = 0x9e3779b97f4a7c15u;
        for (int64_t i = 0; i < num_words; ++i) {
            sum = (sum ^ word[i]) * 0xff51afd7ed558ccdu;
            sum ^= sum >> 32;
        }
        return sum;
    }

    // What was stored before it is in the mapping when what is stored after it is, whenever the process is killed.
    static inline void in_order() { __atomic_thread_fence(__ATOMIC_RELEASE); }
    static inline void store(int64_t *p, int64_t value) { __atomic_store_n(p, value, __ATOMIC_RELEASE); }

    struct RowHeader {
        uint32_t rows_left, rows_before, num_live;
        uint8_t flags, span;
        uint16_t unused;
    };
    static_assert(sizeof(RowHeader) == 16, "a header is 16 bytes");
    """
    struct Head:
        int64_t tail
        int64_t reserved
        int64_t committed
        int64_t num_live
        uint64_t newest
        int64_t drawn
        int64_t updated
        int64_t stale
        int64_t torn
        uint64_t counts_checksum

    struct Sender:
        uint64_t name[2]
        int64_t epoch
        int64_t sequence
        int64_t rows
        int64_t num_bytes
        uint64_t number
        uint64_t checksum

    struct Record:
        uint64_t number
        int64_t committed
        int64_t tail
        int64_t num_live
        int64_t num_inserted
        double max_magnitude
        int64_t slot
        int64_t unused
        Sender sender

    struct Plan:
        uint64_t number
        int64_t end
        int64_t tail
        uint64_t checksum

    struct RowHeader:
        uint32_t rows_left
        uint32_t rows_before
        uint32_t num_live
        uint8_t flags
        uint8_t span
        uint16_t unused

    uint64_t checksum_of(const void *start, int64_t num_words) noexcept
    void in_order() noexcept
    void store(int64_t *p, int64_t value) noexcept


RECORDS_AT = 256
PLANS_AT = 512
SENDERS_AT = 4096
NUM_SENDERS = 1024

cdef enum:
    FIRST_RECORD = 256
    FIRST_PLAN = 512
    FIRST_SENDER = 4096
    MOST_SENDERS = 1024
    HEAD_BYTES = 69632
    SENDER_WORDS = 7  # in front of the checksum
    RECORD_WORDS = 15
    PLAN_WORDS = 3
    COUNTS_WORDS = 4
    LIVE_FLAG = 1
    KNOWN_FLAGS = 3


def checksum(words):
    return checksum_of(address(words, 0, False), len(words) // 8)


cdef class CommitLog:
    cdef Head *_head
    cdef Record *_records
    cdef Plan *_plans
    cdef Sender *_senders
    cdef uint64_t _digests[MOST_SENDERS][2]
    cdef uint64_t _number
    cdef int64_t _num_inserted
    cdef dict _slots  # digest of a name -> slot
    cdef dict _names  # name -> slot, of those that were asked for
    cdef object _kept

    def __cinit__(self, head):
        cdef uint8_t *start = address(head, HEAD_BYTES, True)
        cdef Record *newest
        cdef int64_t slot
        self._kept = head
        self._head = <Head *>start
        self._records = <Record *>(start + FIRST_RECORD)
        self._plans = <Plan *>(start + FIRST_PLAN)
        self._senders = <Sender *>(start + FIRST_SENDER)
        self._slots, self._names = {}, {}
        newest = &self._records[1] if self._records[1].number > self._records[0].number else &self._records[0]
        self._number, self._num_inserted = newest.number, newest.num_inserted
        for slot in range(MOST_SENDERS):
            if self._senders[slot].number:
                self._digests[slot][0], self._digests[slot][1] = self._senders[slot].name[0], self._senders[slot].name[1]
                self._slots[(<char *>self._senders[slot].name)[:16]] = slot

    @property
    def number(self):
        return self._number

    @property
    def num_inserted(self):
        return self._num_inserted

    @property
    def is_settled(self):
        return self._head.reserved == self._head.committed and self._newest_plan().tail == self._head.tail

    @property
    def planned_tail(self):
        return self._newest_plan().tail

    def begin(self, int64_t num_inserted, double max_magnitude):
        self._write(self._head.committed, self._head.num_live, num_inserted, max_magnitude, -1, None)

    def reserve(self, int64_t end, int64_t tail):
        cdef uint64_t number = self._newest_plan().number + 1
        cdef Plan *plan = &self._plans[number & 1]
        plan.number, plan.end, plan.tail = number, end, tail
        plan.checksum = checksum_of(plan, PLAN_WORDS)
        in_order()
        store(&self._head.reserved, end)

    def publish(self, int64_t committed, int64_t num_live):
        self._num_inserted += num_live
        store(&self._head.num_live, self._head.num_live + num_live)
        store(&self._head.committed, committed)
        return self._num_inserted

    def commit(self, int64_t committed, int64_t num_live, double max_magnitude, sender, Counts counts):
        cdef int64_t slot = -1
        if sender is not None:
            if not isinstance(sender, tuple) or len(sender) != 5:
                raise TypeError(f"a sender's mark is a tuple of 5, not {sender!r}")
            slot = self._slot_of((<tuple>sender)[0])
        self._head.drawn, self._head.updated = counts.drawn, counts.updated
        self._head.stale, self._head.torn = counts.stale, counts.torn
        self._head.counts_checksum = checksum_of(&self._head.drawn, COUNTS_WORDS)
        num_live += self._head.num_live
        self._write(committed, num_live, self._num_inserted + num_live - self._head.num_live, max_magnitude, slot, sender)
        store(&self._head.num_live, num_live)
        store(&self._head.committed, committed)
        return self._num_inserted

    def sender(self, name):
        cdef Sender *entry
        slot = self._slots.get(digest_of(name))
        if slot is None:
            return None
        entry = &self._senders[<int64_t>slot]
        return None if entry.number == 0 else (entry.epoch, entry.sequence, entry.rows, entry.num_bytes)

    cdef Plan *_newest_plan(self) noexcept:
        return &self._plans[1] if self._plans[1].number > self._plans[0].number else &self._plans[0]

    cdef _write(self, int64_t committed, int64_t num_live, int64_t num_inserted, double max_magnitude, int64_t slot,
                sender):
        """Everything but the counters: the record, the sender's entry, and the word that says that both are whole."""
        cdef Record record
        cdef Sender *who = &record.sender
        cdef tuple mark
        record.number = who.number = self._number + 1
        record.committed, record.tail, record.num_live = committed, self._head.tail, num_live
        record.num_inserted, record.max_magnitude = num_inserted, max_magnitude
        record.slot, record.unused = slot, 0
        who.name[0] = who.name[1] = 0
        who.epoch = who.sequence = who.rows = who.num_bytes = 0
        if slot >= 0:
            who.name[0], who.name[1] = self._digests[slot][0], self._digests[slot][1]
            mark = <tuple>sender  # of a named one, too: its items are found without asking it
            who.epoch, who.sequence, who.rows, who.num_bytes = mark[1], mark[2], mark[3], mark[4]
        who.checksum = checksum_of(&record, RECORD_WORDS)
        in_order()
        self._records[record.number & 1] = record
        in_order()
        if slot >= 0:
            who.checksum = checksum_of(who, SENDER_WORDS)
            self._senders[slot] = who[0]
            in_order()
        self._head.newest = self._number = record.number
        self._num_inserted = num_inserted
        in_order()

    cdef int64_t _slot_of(self, name) except -1:
        slot = self._names.get(name)
        return self._take_slot(name) if slot is None else slot

    cdef int64_t _take_slot(self, name) except -1:
        """The sender's slot: its own, else a free one, else that of the sender that was silent for longest."""
        cdef bytes digest = digest_of(name)
        cdef int64_t slot
        cdef const uint64_t *word = <const uint64_t *><const char *>digest
        found = self._slots.get(digest)
        if found is None:
            slot = len(self._slots)
            if slot == MOST_SENDERS:
                slot = self._longest_idle()
                del self._slots[(<char *>self._digests[slot])[:16]]
                self._names = {known: at for known, at in self._names.items() if at != slot}
            self._digests[slot][0], self._digests[slot][1] = word[0], word[1]
            found = self._slots[digest] = slot
        self._names[name] = found
        return found

    cdef int64_t _longest_idle(self) noexcept:
        cdef int64_t idle = 0
        cdef int64_t slot
        for slot in range(MOST_SENDERS):
            if self._senders[slot].number < self._senders[idle].number:
                idle = slot
        return idle


def digest_of(name):
    return name if type(name) is bytes else blake2b(name.encode(), digest_size=16).digest()


cdef int64_t whole_fragment(const uint8_t *rows, int64_t stride, int64_t num_rows, int64_t start, int64_t stop,
                          const double *leaves) noexcept nogil:
    """Physical rows of the whole fragment at a position, or 0 where there is none."""
    cdef int64_t slot = start % num_rows
    cdef const RowHeader *first = <const RowHeader *>(rows + slot * stride)
    cdef const RowHeader *row
    cdef int64_t n = <int64_t>first.rows_left + 1
    cdef int64_t num_live = 0
    cdef int64_t i
    if n > stop - start or slot + n > num_rows:
        return 0
    for i in range(n):
        row = <const RowHeader *>(rows + (slot + i) * stride)
        if (row.rows_left != n - 1 - i or row.rows_before != i or row.num_live != first.num_live
                or (row.flags ^ first.flags) & ~LIVE_FLAG or row.flags & ~KNOWN_FLAGS or row.unused != 0):
            return 0
        if row.flags & LIVE_FLAG:
            num_live += 1
            if i == n - 1 or row.span == 0:
                return 0
        elif leaves[slot + i] != 0.0:
            return 0
    return n if num_live == first.num_live else 0


def check_rows(rows, int64_t stride, leaves, int64_t tail, int64_t committed):
    cdef const uint8_t *record = address(rows, 0, False)
    cdef int64_t num_rows = len(rows) // stride
    cdef const double *leaf = <const double *>address(leaves, num_rows * 8, False)
    cdef int64_t position = tail
    cdef int64_t num_live = 0
    cdef int64_t n = 0
    if not 0 <= tail <= committed <= tail + num_rows:
        raise ValueError(f"positions [{tail}, {committed}) do not fit into {num_rows} rows")
    with nogil:
        while position < committed:
            n = whole_fragment(record, stride, num_rows, position, committed, leaf)
            if n == 0:
                break
            num_live += (<const RowHeader *>(record + position % num_rows * stride)).num_live
            position += n
    return num_live, position
