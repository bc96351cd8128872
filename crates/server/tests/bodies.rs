//! Bodies that fill the room there is for them: no request waits for another's.

mod support;

use octavo_server::ServerOptions;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::{Answer, TestServer, engine_options};

const PATH: &str = "/v1/completions";
const CHUNKED: &str =
    "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Only against hanging.
const GUARD: Duration = Duration::from_secs(50);

/// A body of `len` bytes that is right.
fn padded(len: usize) -> Vec<u8> {
    let mut body = json!({"prompt": "a", "max_tokens": 1}).to_string().into_bytes();
    body.resize(len, b' ');
    body
}

fn small(server: &TestServer) {
    server.ask(PATH, json!({"prompt": "a", "max_tokens": 1}));
}

/// Clients that declare a body of `len` bytes and send only its beginning; their answers come through the channel.
fn half_sent(server: &TestServer, count: usize, len: usize) -> (Vec<TcpStream>, Receiver<Answer>) {
    let (tell, answers) = channel();
    let declared = len.to_string();
    let client = |_| {
        let client = server.open("POST", PATH, &[("Content-Length", &declared)], b"{\"prompt\"");
        let (mut reader, tell) = (client.try_clone().unwrap(), tell.clone());
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if reader.read_to_end(&mut bytes).is_ok() && !bytes.is_empty() {
                let _ = tell.send(Answer::parse(&bytes));
            }
        });
        client
    };
    ((0..count).map(client).collect(), answers)
}

fn bodies_full(answer: &Answer) {
    assert_eq!((answer.status, &answer.error()["code"]), (503, &json!("bodies_full")), "{}", answer.text());
    assert!(answer.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
}

#[test]
fn a_body_in_the_smallest_chunks_takes_no_more_room_than_it_is_long() {
    let server = TestServer::start();
    // More chunks than there are KiB of room.
    let body = padded(290_000);
    let mut client = server.connect();
    client.write_all(CHUNKED.as_bytes()).unwrap();
    let chunks: Vec<u8> = body.iter().flat_map(|byte| [b'1', b'\r', b'\n', *byte, b'\r', b'\n']).collect();
    client.write_all(&chunks).unwrap();
    small(&server);
    client.write_all(b"0\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    let answer = Answer::parse(&bytes);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn while_large_bodies_fill_the_room_others_are_refused_at_once_and_small_ones_pass() {
    let options = ServerOptions { max_body: 128 << 20, ..ServerOptions::default() };
    let server = TestServer::with(options, engine_options());
    // Four of these fill 256 MiB and a largest body: 32 KiB of each are not counted.
    let (clients, answers) = half_sent(&server, 6, (96 << 20) + (32 << 10));
    for _ in 0..2 {
        bodies_full(&answers.recv_timeout(GUARD).expect("two find no room"));
    }
    // Whether its length is declared or not.
    bodies_full(&server.send("POST", PATH, &[], &padded(40 << 10)));
    let mut client = server.connect();
    client.write_all(CHUNKED.as_bytes()).unwrap();
    client.write_all(b"a000\r\n").unwrap();
    client.write_all(&padded(40 << 10)).unwrap();
    client.write_all(b"\r\n0\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).unwrap();
    bodies_full(&Answer::parse(&bytes));

    small(&server);
    assert_eq!(server.send("POST", PATH, &[], &padded(32 << 10)).status, 200);
    // The four are still being read.
    assert!(answers.try_recv().is_err());

    for client in clients {
        let _ = client.shutdown(Shutdown::Both);
    }
    let deadline = Instant::now() + GUARD;
    while server.send("POST", PATH, &[], &padded(8 << 20)).status != 200 {
        assert!(Instant::now() < deadline, "the room of clients that went away is not given back");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn bodies_that_grow_into_each_other_are_read_or_refused_but_never_wait() {
    let options = ServerOptions { max_body: 128 << 20, ..ServerOptions::default() };
    let server = TestServer::with(options, engine_options());
    // Five times 80 MiB come in parts that nobody was told of; there is room for 384.
    let part = vec![b' '; 1 << 20];
    let mut clients: Vec<TcpStream> = (0..5).map(|_| server.connect()).collect();
    let opening = padded(100);
    for client in &mut clients {
        client.write_all(CHUNKED.as_bytes()).unwrap();
        client.write_all(b"64\r\n").unwrap();
        client.write_all(&opening).unwrap();
        client.write_all(b"\r\n").unwrap();
    }
    for _ in 0..80 {
        for client in &mut clients {
            // One that was refused may be closed by now.
            let _ = client.write_all(b"100000\r\n");
            let _ = client.write_all(&part);
            let _ = client.write_all(b"\r\n");
        }
    }
    small(&server);
    let answers: Vec<Option<Answer>> = clients.into_iter().map(finish).collect();
    let (read, refused): (Vec<_>, Vec<_>) = answers.iter().flatten().partition(|answer| answer.status == 200);
    assert!(!read.is_empty() && read.len() < answers.len(), "{answers:?}");
    refused.into_iter().for_each(bodies_full);
}

/// The answer to a body that ends now. Whoever is refused and goes on sending for long may miss it.
fn finish(mut client: TcpStream) -> Option<Answer> {
    let _ = client.write_all(b"0\r\n\r\n");
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).ok().map(|_| Answer::parse(&bytes))
}
