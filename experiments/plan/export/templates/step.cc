// The WAN traffic of one training step over TCP, packet by packet, for ns-3 3.44.
//
// Reads from --folder: links.csv (node, node, Gbit/s one way, Gbit/s the other way, one-way delay),
// ranks.csv (rank, node, ...) and operations.csv (what every rank computes, sends and receives, and
// after which other operations). Prints when each of --steps steps is done. The first one begins with
// cold connections.

#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <algorithm>
#include <deque>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

using namespace ns3;

namespace
{

constexpr uint32_t HEADERS = 52; // [B] IPv4, TCP and its timestamps
constexpr uint32_t LEAST_BUFFER = 1 << 20;
constexpr uint64_t LARGEST_WRITE = 1 << 18;
constexpr uint16_t FIRST_PORT = 10000;

struct Operation
{
    std::string kind; // compute, send, receive
    double seconds;   // of computing; of a transfer inside a domain
    int source;       // rank
    int target;       // rank
    int tag;
    uint64_t bytes;
    std::vector<size_t> followers; // operations that wait for this one
    size_t needs;                  // operations that it waits for
    size_t left;                   // of them, in this step
};

// A TCP connection from a rank to another: messages in the order in which they are sent.
struct Connection
{
    Ptr<Socket> sender;
    Ptr<Socket> listener;
    Ptr<Socket> receiver;
    uint64_t unsent = 0;                             // bytes that wait for room in the buffer
    uint64_t promised = 0;                           // bytes of all messages so far
    uint64_t arrived = 0;                            // bytes
    std::deque<std::pair<uint64_t, size_t>> awaited; // end of a message, its receive operation
};

using Row = std::vector<std::string>;

std::vector<Row>
ReadTable(const std::string& path)
{
    std::ifstream file(path);
    NS_ABORT_MSG_UNLESS(file, path << ": cannot be read");
    std::vector<Row> rows;
    std::string line;
    std::getline(file, line); // names of the columns
    while (std::getline(file, line))
    {
        Row row;
        std::stringstream text(line);
        for (std::string cell; std::getline(text, cell, ',');)
        {
            row.push_back(cell);
        }
        rows.push_back(row);
    }
    return rows;
}

class Step
{
  public:
    Step(const std::string& folder, double share, uint32_t segment);
    int Run(int steps);

  private:
    void BuildLinks(const std::string& folder, double share, uint32_t segment);
    void ReadOperations(const std::string& folder);
    void Connect();
    void Begin();
    void Start(size_t number);
    void Done(size_t number);
    void Deliver(size_t send);
    void Fill(Connection* connection);
    void Arrived(Connection* connection, Ptr<Socket> socket);

    NodeContainer m_nodes;
    std::map<std::pair<uint32_t, uint32_t>, Ipv4Address> m_address; // of the second, seen by the first
    std::map<uint32_t, double> m_buffer;                            // [B] that a node's links ask for
    std::vector<uint32_t> m_nodeOf;                                 // by rank
    std::vector<Operation> m_operations;
    std::map<std::tuple<int, int, int>, size_t> m_receive; // (source, target, tag) -> operation
    std::map<std::pair<int, int>, std::unique_ptr<Connection>> m_connection; // by ranks
    std::map<std::pair<int, int>, Time> m_insideFree; // when a way inside a domain is free again
    size_t m_left = 0;
    int m_step = 0;
    int m_steps = 1;
    Time m_begin;
    Time m_warmUp;
};

Step::Step(const std::string& folder, double share, uint32_t segment)
{
    BuildLinks(folder, share, segment);
    ReadOperations(folder);
    Connect();
}

void
Step::BuildLinks(const std::string& folder, double share, uint32_t segment)
{
    for (const Row& row : ReadTable(folder + "/ranks.csv"))
    {
        m_nodeOf.push_back(std::stoul(row[1]));
    }
    const std::vector<Row> links = ReadTable(folder + "/links.csv");
    uint32_t nodes = 1;
    for (const Row& row : links)
    {
        nodes = std::max<uint32_t>(nodes, std::stoul(row[1]) + 1);
    }
    m_nodes.Create(nodes);
    InternetStackHelper stack;
    stack.Install(m_nodes);
    Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.252");
    TrafficControlHelper control;
    for (const Row& row : links)
    {
        const uint32_t a = std::stoul(row[0]);
        const uint32_t b = std::stoul(row[1]);
        const double bits[] = {1e9 * share * std::stod(row[2]), 1e9 * share * std::stod(row[3])};
        const double delay = std::stod(row[4]);
        const double held = 2.0 * std::max(bits[0], bits[1]) / 8.0 * delay; // bandwidth x round trip
        PointToPointHelper link;
        link.SetChannelAttribute("Delay", TimeValue(Seconds(delay)));
        link.SetDeviceAttribute("Mtu", UintegerValue(segment + HEADERS));
        const uint32_t queue = std::max<uint32_t>(LEAST_BUFFER, held);
        link.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", StringValue(std::to_string(queue) + "B"));
        NetDeviceContainer ends = link.Install(m_nodes.Get(a), m_nodes.Get(b));
        for (uint32_t end : {0, 1})
        {
            ends.Get(end)->SetAttribute("DataRate", DataRateValue(DataRate(std::max<uint64_t>(1, bits[end]))));
        }
        Ipv4InterfaceContainer faces = addresses.Assign(ends);
        control.Uninstall(ends); // the device's own queue alone
        addresses.NewNetwork();
        m_address[{a, b}] = faces.GetAddress(1);
        m_address[{b, a}] = faces.GetAddress(0);
        for (uint32_t end : {a, b})
        {
            m_buffer[end] = std::max(m_buffer[end], 2.0 * (held + queue));
        }
        m_warmUp = std::max(m_warmUp, Seconds(10.0 * delay));
    }
}

void
Step::ReadOperations(const std::string& folder)
{
    for (const Row& row : ReadTable(folder + "/operations.csv"))
    {
        Operation operation{row[2], std::stod(row[3]), std::stoi(row[4]), std::stoi(row[5]),
                            std::stoi(row[6]), std::stoull(row[7]), {}, 0, 0};
        const size_t number = m_operations.size();
        std::stringstream after(row.size() > 8 ? row[8] : "");
        for (std::string other; after >> other;)
        {
            const size_t before = std::stoul(other);
            NS_ABORT_MSG_UNLESS(before < number, "operations.csv: " << number << " waits for a later one");
            m_operations[before].followers.push_back(number);
            ++operation.needs;
        }
        if (operation.kind == "receive")
        {
            m_receive[{operation.source, operation.target, operation.tag}] = number;
        }
        m_operations.push_back(operation);
    }
}

void
Step::Connect()
{
    uint16_t port = FIRST_PORT;
    for (const Operation& operation : m_operations)
    {
        const auto ranks = std::make_pair(operation.source, operation.target);
        if (operation.kind != "send" || m_connection.count(ranks))
        {
            continue;
        }
        const uint32_t from = m_nodeOf.at(operation.source);
        const uint32_t to = m_nodeOf.at(operation.target);
        if (from == to)
        {
            continue;
        }
        auto* made = (m_connection[ranks] = std::make_unique<Connection>()).get();
        made->listener = Socket::CreateSocket(m_nodes.Get(to), TcpSocketFactory::GetTypeId());
        made->sender = Socket::CreateSocket(m_nodes.Get(from), TcpSocketFactory::GetTypeId());
        const auto held = UintegerValue(std::max(m_buffer[from], m_buffer[to]));
        for (auto& socket : {made->listener, made->sender})
        {
            socket->SetAttribute("SndBufSize", held);
            socket->SetAttribute("RcvBufSize", held);
        }
        made->listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), port));
        made->listener->Listen();
        made->listener->SetAcceptCallback(
            MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
            Callback<void, Ptr<Socket>, const Address&>([this, made](Ptr<Socket> socket, const Address&) {
                made->receiver = socket;
                socket->SetRecvCallback(Callback<void, Ptr<Socket>>(
                    [this, made](Ptr<Socket> from) { Arrived(made, from); }));
            }));
        made->sender->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>(
            [this, made](Ptr<Socket>, uint32_t) { Fill(made); }));
        made->sender->Connect(InetSocketAddress(m_address.at({from, to}), port));
        ++port;
    }
}

int
Step::Run(int steps)
{
    m_steps = steps;
    Simulator::Schedule(m_warmUp, &Step::Begin, this);
    Simulator::Run();
    Simulator::Destroy();
    if (m_step < m_steps)
    {
        std::cerr << "step " << m_step + 1 << ": " << m_left << " operations were never done\n";
        return 1;
    }
    return 0;
}

void
Step::Begin()
{
    m_begin = Simulator::Now();
    m_left = m_operations.size();
    for (Operation& operation : m_operations)
    {
        // A message is one more thing to wait for.
        operation.left = operation.needs + (operation.kind == "receive");
    }
    for (size_t number = 0; number < m_operations.size(); ++number)
    {
        if (m_operations[number].left == 0)
        {
            Simulator::ScheduleNow(&Step::Start, this, number);
        }
    }
}

void
Step::Start(size_t number)
{
    const Operation& operation = m_operations[number];
    if (operation.kind == "compute")
    {
        Simulator::Schedule(Seconds(operation.seconds), &Step::Done, this, number);
        return;
    }
    if (operation.kind == "send")
    {
        Deliver(number);
    }
    Done(number);
}

void
Step::Done(size_t number)
{
    for (size_t next : m_operations[number].followers)
    {
        if (--m_operations[next].left == 0)
        {
            Start(next);
        }
    }
    if (--m_left > 0)
    {
        return;
    }
    ++m_step;
    std::cout << "step " << m_step << ": " << std::setprecision(6) << std::fixed
              << (Simulator::Now() - m_begin).GetSeconds() << " s" << std::endl;
    if (m_step < m_steps)
    {
        Simulator::ScheduleNow(&Step::Begin, this);
    }
    else
    {
        Simulator::Stop();
    }
}

void
Step::Deliver(size_t send)
{
    const Operation& operation = m_operations[send];
    const auto ranks = std::make_pair(operation.source, operation.target);
    const size_t receive = m_receive.at({operation.source, operation.target, operation.tag});
    auto over = m_connection.find(ranks);
    if (over == m_connection.end()) // inside a domain: one at a time
    {
        Time& free = m_insideFree[ranks];
        free = std::max(free, Simulator::Now()) + Seconds(operation.seconds);
        Simulator::Schedule(free - Simulator::Now(), [this, receive]() {
            if (--m_operations[receive].left == 0)
            {
                Start(receive);
            }
        });
        return;
    }
    Connection* connection = over->second.get();
    connection->promised += operation.bytes;
    connection->unsent += operation.bytes;
    connection->awaited.emplace_back(connection->promised, receive);
    Fill(connection);
}

void
Step::Fill(Connection* connection)
{
    while (connection->unsent > 0)
    {
        const uint64_t room = connection->sender->GetTxAvailable();
        const uint64_t size = std::min({room, connection->unsent, LARGEST_WRITE});
        // Bytes without content: only their number counts.
        if (size == 0 || connection->sender->Send(Create<Packet>(size)) <= 0)
        {
            return;
        }
        connection->unsent -= size;
    }
}

void
Step::Arrived(Connection* connection, Ptr<Socket> socket)
{
    while (Ptr<Packet> packet = socket->Recv())
    {
        if (packet->GetSize() == 0)
        {
            break;
        }
        connection->arrived += packet->GetSize();
    }
    auto& awaited = connection->awaited;
    while (!awaited.empty() && awaited.front().first <= connection->arrived)
    {
        const size_t receive = awaited.front().second;
        awaited.pop_front();
        if (--m_operations[receive].left == 0)
        {
            Start(receive);
        }
    }
}

} // namespace

int
main(int argc, char* argv[])
{
    std::string folder = ".";
    std::string tcp = "TcpCubic";
    double share = 1.0;
    uint32_t segment = 8948;
    int steps = 2;
    CommandLine command(__FILE__);
    command.AddValue("folder", "where the tables are", folder);
    command.AddValue("tcp", "congestion control, a class of ns-3", tcp);
    command.AddValue("share", "of every link's rate that there is", share);
    command.AddValue("segment", "bytes of a TCP segment", segment);
    command.AddValue("steps", "how many steps, one after another", steps);
    command.Parse(argc, argv);
    NS_ABORT_MSG_UNLESS(share > 0.0 && segment > 0 && steps > 0, "share, segment, steps: expected > 0");
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TypeId::LookupByName("ns3::" + tcp)));
    return Step(folder, share, segment).Run(steps);
}
